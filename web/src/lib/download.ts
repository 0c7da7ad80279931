// Files for the reader: SVG as it stands on the page, PNG at twice its size, any text.

export function save(name: string, content: Blob | string, type = "text/plain"): void {
  const blob = typeof content === "string" ? new Blob([content], { type: `${type};charset=utf-8` }) : content;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** An SVG as text, and its size. */
export interface Picture {
  text: string;
  width: number;
  height: number;
}

const MARGIN = 16;
const NS = "http://www.w3.org/2000/svg";

/** All charts under `root` as one picture, each where it stands on the page, over the page's surface colour. */
export function gather(root: Element, background: string, font: string): Picture {
  const charts = [...root.querySelectorAll<SVGSVGElement>("svg[data-chart]")];
  const boxes = charts.map((chart) => chart.getBoundingClientRect());
  const left = Math.min(...boxes.map((box) => box.left)) - MARGIN;
  const top = Math.min(...boxes.map((box) => box.top)) - MARGIN;
  const width = Math.ceil(Math.max(...boxes.map((box) => box.right)) - left + MARGIN);
  const height = Math.ceil(Math.max(...boxes.map((box) => box.bottom)) - top + MARGIN);
  const whole = document.createElementNS(NS, "svg");
  whole.setAttribute("xmlns", NS);
  whole.setAttribute("width", String(width));
  whole.setAttribute("height", String(height));
  whole.setAttribute("viewBox", `0 0 ${width} ${height}`);
  whole.setAttribute("font-family", font);
  const ground = document.createElementNS(NS, "rect");
  ground.setAttribute("width", "100%");
  ground.setAttribute("height", "100%");
  ground.setAttribute("fill", background);
  whole.append(ground);
  charts.forEach((chart, index) => {
    const copy = chart.cloneNode(true) as SVGSVGElement;
    const box = boxes[index];
    if (!box) return;
    copy.querySelectorAll("[data-cursor]").forEach((node) => node.remove());
    for (const name of ["tabindex", "aria-label", "aria-roledescription", "role"]) copy.removeAttribute(name);
    copy.setAttribute("x", String(box.left - left));
    copy.setAttribute("y", String(box.top - top));
    copy.setAttribute("width", String(box.width));
    copy.setAttribute("height", String(box.height));
    whole.append(copy);
  });
  return { text: new XMLSerializer().serializeToString(whole), width, height };
}

export async function png(svg: Picture, factor = 2): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg.text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = svg.width * factor;
  canvas.height = svg.height * factor;
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return blobOf(canvas);
}

export function blobOf(canvas: HTMLCanvasElement): Promise<Blob> {
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The browser gave no picture."))), "image/png");
  });
}

const ESCAPES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
export const escaped = (text: string): string => text.replaceAll(/[&<>"]/g, (sign) => ESCAPES[sign] ?? sign);

/** Pictures with their names, side by side in rows; over all of them a caption, where there is one. */
export function montage(
  pictures: { name: string; canvas: HTMLCanvasElement }[],
  ink: string,
  ground: string,
  caption = "",
  size = 160,
): Picture {
  const top = caption ? 24 : 0;
  const columns = Math.ceil(Math.sqrt(pictures.length));
  const [width, height] = [columns * (size + 16), top + Math.ceil(pictures.length / columns) * (size + 32)];
  const parts = pictures.map(({ name, canvas }, index) => {
    const [x, y] = [(index % columns) * (size + 16) + 8, top + Math.floor(index / columns) * (size + 32) + 8];
    const image = `<image x="${x}" y="${y}" width="${size}" height="${size}" style="image-rendering:pixelated" href="${canvas.toDataURL()}"/>`;
    return `${image}<text x="${x}" y="${y + size + 15}" font-size="12" fill="${ink}">${escaped(name)}</text>`;
  });
  if (caption) parts.unshift(`<text x="8" y="18" font-size="13" fill="${ink}">${escaped(caption)}</text>`);
  const open = `<svg xmlns="${NS}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif">`;
  return { text: `${open}<rect width="100%" height="100%" fill="${ground}"/>${parts.join("")}</svg>`, width, height };
}
