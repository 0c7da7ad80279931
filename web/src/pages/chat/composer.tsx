// The box a message is written in, with the images that go along.
import { useRef, useState } from "preact/hooks";
import { Button } from "../../components/controls";
import { draft, draftImages } from "./drafts";
import { ACCEPTED, MOST_IMAGES, readImages } from "./image_files";
import { stop, writing } from "./store";

export interface ComposerProps {
  disabled: boolean;
  /** The model reads images. */
  images: boolean;
  onSend: (text: string, images: string[]) => void;
}

export function Composer({ disabled, images, onSend }: ComposerProps) {
  const text = draft.value;
  const attached = draftImages.value;
  const area = useRef<HTMLTextAreaElement>(null);
  const [problems, setProblems] = useState<string[]>([]);
  const [over, setOver] = useState(false);
  const busy = writing.value !== null;
  const empty = !text.trim() && !attached.length;
  const send = () => {
    if (empty || disabled || busy) return;
    draft.value = "";
    draftImages.value = [];
    setProblems([]);
    onSend(text, attached);
    area.current?.focus();
  };
  const add = async (files: File[]) => {
    const read = await readImages(files, MOST_IMAGES - draftImages.peek().length);
    draftImages.value = [...draftImages.peek(), ...read.urls];
    setProblems(read.problems);
  };
  /** Files among what is pasted or dropped here are images, or refused in words; anything else is left alone. */
  const takeFiles = (event: Event, from: DataTransfer | null) => {
    const files = [...(from?.files ?? [])];
    if (!images || !files.length) return;
    event.preventDefault();
    void add(files);
  };
  return (
    <form
      class={`chat-composer ${images ? "images" : ""} ${over ? "over" : ""}`}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onDragOver={(event) => {
        if (!images || !event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        setOver(false);
        takeFiles(event, event.dataTransfer);
      }}
    >
      <Thumbnails
        images={attached}
        onRemove={(at) => {
          draftImages.value = attached.filter((_, index) => index !== at);
          area.current?.focus();
        }}
      />
      {problems.length > 0 && (
        <p class="small chat-wrong" role="alert">
          {problems.join(" ")}
        </p>
      )}
      <textarea
        ref={area}
        class="area"
        rows={2}
        aria-label="Message"
        placeholder="Write a message"
        title="Enter to send, Shift+Enter for a new line"
        value={text}
        onInput={(event) => (draft.value = event.currentTarget.value)}
        onPaste={(event) => takeFiles(event, event.clipboardData)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      <div class="chat-send">
        {images && <AddImage onFiles={(files) => void add(files)} />}
        {busy ? (
          <Button onClick={stop}>Stop</Button>
        ) : (
          <Button submit look="main" disabled={disabled || empty}>
            Send
          </Button>
        )}
      </div>
    </form>
  );
}

function AddImage({ onFiles }: { onFiles: (files: File[]) => void }) {
  const file = useRef<HTMLInputElement>(null);
  return (
    <>
      <Button title="PNG, JPEG or WebP; pasting and dropping work as well" onClick={() => file.current?.click()}>
        Add an image
      </Button>
      <input
        ref={file}
        class="hidden"
        type="file"
        multiple
        accept={ACCEPTED}
        aria-label="Image files"
        tabIndex={-1}
        onChange={(event) => {
          onFiles([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

/** Images that go along with a message. */
export function Thumbnails({ images, onRemove }: { images: string[]; onRemove: (at: number) => void }) {
  if (!images.length) return null;
  return (
    <ul class="chat-thumbnails" aria-label="Images of this message">
      {images.map((url, at) => (
        <li key={at}>
          <img src={url} alt={`Image ${at + 1}`} />
          <button type="button" class="button little" aria-label={`Remove image ${at + 1}`} onClick={() => onRemove(at)}>
            ✕
          </button>
        </li>
      ))}
    </ul>
  );
}
