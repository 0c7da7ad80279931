// Which conversations there are, as the server knows them: kept on this machine, or in its memory alone.
import { signal } from "@preact/signals";
import { get, post, remove, text } from "../../api";
import type { ConversationList, ImportedConversation, SavedConversation } from "../../generated/api";

export const list = signal<ConversationList | null>(null);

export async function refreshList(): Promise<void> {
  try {
    list.value = await get<ConversationList>("/conversations");
  } catch {
    // whoever needs the server says that it is gone
  }
}

export async function keep(keeping: boolean): Promise<void> {
  await post("/conversations/keeping", { keeping });
  await refreshList();
}

export async function forget(id: string | null): Promise<void> {
  await remove(id === null ? "/conversations" : `/chat/${id}`);
  await refreshList();
}

/** All of them, or one, as the text of a file. */
export const exported = (id: string | null): Promise<string> =>
  text(`/conversations/export${id === null ? "" : `?conversation=${id}`}`, { seconds: 120 });

/** The conversations of such a file; what they are called here, and how many are new. */
export async function imported(content: string): Promise<{ ids: string[]; added: number }> {
  const file = JSON.parse(content) as { conversations?: SavedConversation[] } | null;
  if (!file || !Array.isArray(file.conversations)) throw new Error("This file holds no conversations of the studio.");
  const ids: string[] = [];
  let added = 0;
  for (const conversation of file.conversations) {
    const answer = await post<ImportedConversation>("/conversations/import", conversation, { seconds: 60 });
    ids.push(answer.conversation);
    added += answer.new ? 1 : 0;
  }
  await refreshList();
  return { ids, added };
}
