// The conversations: open one, delete one or all, take them elsewhere as a file, and whether they are kept at all.
import { useEffect, useRef, useState } from "preact/hooks";
import { Trouble } from "../../api";
import { Button, Check } from "../../components/controls";
import { Card, Problem } from "../../components/state";
import { asTrouble } from "../../hooks";
import { save } from "../../lib/download";
import type { ConversationEntry } from "../../generated/api";
import { exported, forget, imported, keep, list, refreshList } from "./list";
import { current, show, startAnew } from "./store";

const SHOWN = 8;

export function ConversationsCard() {
  const [all, setAll] = useState(false);
  const [sure, setSure] = useState<string | null>(null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [word, setWord] = useState("");
  const file = useRef<HTMLInputElement>(null);
  useEffect(() => void refreshList(), []);
  const known = list.value;
  const attempt = (work: Promise<unknown>) => {
    setTrouble(null);
    setSure(null);
    work.catch((error: unknown) => setTrouble(asTrouble(error)));
  };
  const entries = known?.conversations ?? [];
  const drop = (id: string | null) => {
    if (id === null || id === current.value?.id) startAnew();
    attempt(forget(id));
  };
  const takeIn = async (chosen: File) => {
    const { ids, added } = await imported(await chosen.text());
    setWord(`${added} of ${ids.length} conversations were new.`);
    if (ids[0]) show(ids[0]);
  };
  return (
    <Card title="Conversations">
      {known?.problem && <p class="small">{known.problem}.</p>}
      {entries.length ? (
        <ul class="chat-list">
          {entries.slice(0, all ? undefined : SHOWN).map((entry) => (
            <Row key={entry.conversation} entry={entry} sure={sure === entry.conversation} ask={setSure} drop={drop} />
          ))}
        </ul>
      ) : (
        <p class="small muted">None yet.</p>
      )}
      {entries.length > SHOWN && (
        <div>
          <Button little look="quiet" onClick={() => setAll(!all)}>
            {all ? "Show fewer" : `Show all ${entries.length}`}
          </Button>
        </div>
      )}
      <Check
        label="Keep conversations on this machine"
        value={known?.keeping ?? true}
        onChange={(on) => attempt(keep(on))}
      />
      <p class="small muted chat-folder">
        {known?.keeping === false
          ? "New conversations are lost when the server stops. Saved ones stay until you delete them."
          : `In ${known?.folder ?? "your own folder"}; readable only by you.`}
      </p>
      <div class="row">
        <Button little disabled={!entries.length} onClick={() => attempt(exported(null).then((text) => save("conversations.json", text, "application/json")))}>
          Export all
        </Button>
        <Button little onClick={() => file.current?.click()}>
          Import
        </Button>
        <input
          ref={file}
          class="hidden"
          type="file"
          accept="application/json,.json"
          aria-label="A file of conversations"
          tabIndex={-1}
          onChange={(event) => {
            const [chosen] = event.currentTarget.files ?? [];
            if (chosen) attempt(takeIn(chosen));
            event.currentTarget.value = "";
          }}
        />
        {sure === "all" ? (
          <>
            <Button little onClick={() => drop(null)}>
              Yes, delete all {entries.length}
            </Button>
            <Button little look="quiet" onClick={() => setSure(null)}>
              Cancel
            </Button>
          </>
        ) : (
          <Button little look="quiet" disabled={!entries.length} onClick={() => setSure("all")}>
            Delete all
          </Button>
        )}
      </div>
      {word && (
        <p class="small muted" role="status">
          {word}
        </p>
      )}
      {trouble && <Problem trouble={trouble} />}
    </Card>
  );
}

interface RowProps {
  entry: ConversationEntry;
  sure: boolean;
  ask: (id: string | null) => void;
  drop: (id: string) => void;
}

function Row({ entry, sure, ask, drop }: RowProps) {
  const { conversation: id, title, turns, model, origin, writing } = entry;
  const about = [
    model,
    `${turns} ${turns === 1 ? "message" : "messages"}`,
    when(entry.updated),
    ...(origin ? ["a branch"] : []),
    ...(writing ? ["being written"] : []),
    ...(entry.kept ? [] : ["not kept"]),
  ].join(" · ");
  return (
    <li>
      <button
        type="button"
        class="chat-entry"
        aria-current={id === current.value?.id ? "true" : undefined}
        onClick={() => show(id)}
      >
        <span class="chat-title">{title || "(being written)"}</span>
        <span class="chat-about muted">{about}</span>
      </button>
      {sure ? (
        <span class="row">
          <Button little onClick={() => drop(id)}>
            Delete
          </Button>
          <Button little look="quiet" onClick={() => ask(null)}>
            Cancel
          </Button>
        </span>
      ) : (
        <Button little look="quiet" label={`Delete “${title}”`} onClick={() => ask(id)}>
          ✕
        </Button>
      )}
    </li>
  );
}

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

function when(seconds: number): string {
  const then = new Date(seconds * 1000);
  return then.toDateString() === new Date().toDateString() ? TIME.format(then) : DAY.format(then);
}
