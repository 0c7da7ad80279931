// PNG, SVG and CSV of whatever charts stand under an element.
import type { RefObject } from "preact";
import { useState } from "preact/hooks";
import { gather, type Picture, png, save } from "../lib/download";
import { paint } from "../theme";
import { Button } from "./controls";

export interface DownloadRowProps {
  /** The files' name, without an ending. */
  name: string;
  /** Where the charts (svg[data-chart]) stand, or how to draw what is no such chart. */
  root?: RefObject<HTMLElement | null>;
  picture?: () => Picture;
  csv: () => string;
}

export function DownloadRow({ name, root, picture, csv }: DownloadRowProps) {
  const [wrong, setWrong] = useState("");
  const download = (kind: "png" | "svg" | "csv") => {
    setWrong("");
    const file = `${name}.${kind}`;
    if (kind === "csv") return save(file, csv(), "text/csv");
    const drawn = picture
      ? picture()
      : root?.current
        ? gather(root.current, paint.value.surface, "system-ui, sans-serif")
        : null;
    if (!drawn) return;
    if (kind === "svg") return save(file, drawn.text, "image/svg+xml");
    png(drawn).then(
      (blob) => save(file, blob),
      () => setWrong("The browser could not create a PNG. Download the SVG instead."),
    );
  };
  return (
    <div class="row downloads" role="group" aria-label={`Download ${name}`}>
      {(["png", "svg", "csv"] as const).map((kind) => (
        <Button
          key={kind}
          little
          look="quiet"
          label={`Download ${name} as ${kind.toUpperCase()}`}
          onClick={() => download(kind)}
        >
          {kind.toUpperCase()}
        </Button>
      ))}
      {wrong && <p role="alert">{wrong}</p>}
    </div>
  );
}
