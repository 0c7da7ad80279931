// Image files on their way into a message: a quick look at kind and size. The server checks for itself.
import { byteSize } from "../../lib/numbers";

export const MOST_IMAGES = 16;
const LARGEST = 24 * 2 ** 20; // what the server takes of one conversation
export const ACCEPTED = "image/png,image/jpeg,image/webp";

/** The kind of a file by its first bytes, whatever its name says; null: none that is read. */
export function kindOf(head: Uint8Array): string | null {
  const text = String.fromCharCode(...head.slice(0, 12));
  if (text.startsWith("\x89PNG\r\n\x1a\n")) return "image/png";
  if (text.startsWith("\xff\xd8\xff")) return "image/jpeg";
  if (text.startsWith("RIFF") && text.slice(8) === "WEBP") return "image/webp";
  return null;
}

/** Why a file is not taken, in a sentence; null: it may be sent. */
export function whyNot(name: string, size: number, head: Uint8Array): string | null {
  const file = name ? `“${name}”` : "This file";
  if (!size) return `${file} is empty.`;
  if (kindOf(head) === null) return `${file} is no image that can be read here: choose a PNG, JPEG or WebP file.`;
  if (size > LARGEST) return `${file} has ${byteSize(size)}: at most ${byteSize(LARGEST)} can be sent. Make it smaller.`;
  return null;
}

const dataUrl = (blob: Blob): Promise<string> =>
  new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(String(reader.result));
    reader.onerror = () => fail(reader.error ?? new Error("the file cannot be read"));
    reader.readAsDataURL(blob);
  });

export interface ReadImages {
  urls: string[];
  /** What was not taken, and why. */
  problems: string[];
}

/** Files as data: URLs. `room`: how many more there may be. */
export async function readImages(files: File[], room: number): Promise<ReadImages> {
  const read: ReadImages = { urls: [], problems: [] };
  for (const file of files) {
    try {
      const head = new Uint8Array(await file.slice(0, 12).arrayBuffer());
      const problem = read.urls.length >= room ? `At most ${MOST_IMAGES} images can be sent.` : whyNot(file.name, file.size, head);
      if (problem) read.problems.push(problem);
      else read.urls.push(await dataUrl(new Blob([file], { type: kindOf(head) ?? "" })));
    } catch {
      read.problems.push(`“${file.name}” cannot be read: it may be gone, or not yours to read.`);
    }
  }
  return { ...read, problems: [...new Set(read.problems)] };
}
