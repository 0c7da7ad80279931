import { describe, expect, it } from "vitest";
import { EventReader, refusal } from "../src/api";
import { luminance, mix, over, rgb, table } from "../src/lib/colour";
import { legendOf } from "../src/components/chart/HeatChart";
import { csv, figureCsv } from "../src/lib/csv";
import { escaped } from "../src/lib/download";
import { slug, spoken } from "../src/lib/encoding";
import { links, strongest } from "../src/lib/links";
import { clampView, coarser, weights, zoomed } from "../src/lib/matrix";
import { byteSize, compact, duration, percent, sampledPercent, show } from "../src/lib/numbers";
import { bin, extent, makeScale, ticks } from "../src/lib/scale";
import { sorted } from "../src/lib/sort";
import { grouped, pickKeys, stacked } from "../src/lib/stack";
import { locate, nameOf, pieces, tints, visible, withImages } from "../src/lib/tokens";
import { kindOf, whyNot } from "../src/pages/chat/image_files";
import { encoded, file } from "../src/pages/attention/side";
import { href, parse, read } from "../src/router";

describe("the router", () => {
  it("reads what it wrote", () => {
    const params = { layer: "3", text: "a & b = c?\n#d+é" };
    expect(parse(href("attention", params))).toEqual({ page: "attention", params });
  });
  it("goes home without a page", () => {
    for (const hash of ["", "#", "#/"]) expect(parse(hash)).toEqual({ page: "chat", params: {} });
  });
  it("leaves out what is empty", () =>
    expect(href("chat", { model: "", a: null, b: undefined, c: 0 })).toBe("#/chat?c=0"));
  it("falls back on what cannot be read", () => {
    expect(read("x", 3)).toBe(3);
    expect(read("", 3)).toBe(3);
    expect(read("4.5", 3)).toBe(4.5);
    expect(read("true", false)).toBe(true);
    expect(read(undefined, "mean")).toBe("mean");
  });
});

describe("events", () => {
  it("come whole, however the text is cut", () => {
    const text =
      'event: token\ndata: {"text":"é\\n"}\n\n: still at work\n\nevent: done\r\ndata: {"a":\r\ndata: 1}\r\n\r\n';
    const whole = new EventReader().take(text);
    expect(whole).toEqual([
      { event: "token", data: { text: "é\n" } },
      { event: "done", data: { a: 1 } },
    ]);
    for (const size of [1, 2, 3, 7, 20]) {
      const reader = new EventReader();
      const found = [];
      for (let at = 0; at < text.length; at += size) found.push(...reader.take(text.slice(at, at + size)));
      expect(found).toEqual(whole);
    }
  });
});

describe("refusals", () => {
  it("keep the server's words", () => {
    const said = refusal(400, '{"error":{"message":"too long","code":"context_length_exceeded"}}');
    expect([said.kind, said.message, said.code]).toEqual(["refused", "too long", "context_length_exceeded"]);
  });
  it("say what to do", () => {
    expect(refusal(403, "").kind).toBe("stale");
    expect(refusal(429, "").advice).toMatch(/retry/);
    expect(refusal(500, "<html>").message).toMatch(/500/);
  });
});

describe("scales", () => {
  it("map there and back", () => {
    for (const log of [false, true]) {
      const scale = makeScale([1, 1000], [300, 20], log);
      expect(scale(1)).toBeCloseTo(300);
      expect(scale(1000)).toBeCloseTo(20);
      expect(scale.invert(scale(37))).toBeCloseTo(37);
    }
  });
  it("have round ticks inside", () => {
    expect(ticks([0, 10], 5)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticks([-0.31, 0.29], 4)).toEqual([-0.2, 0, 0.2]);
    expect(ticks([1, 1000], 5, true)).toEqual([1, 10, 100, 1000]);
    for (const tick of ticks([3.2, 97.1], 6)) expect(tick >= 3.2 && tick <= 97.1).toBe(true);
  });
  it("cope with nothing and with one value", () => {
    expect(extent([])).toEqual([0, 1]);
    expect(extent([null, Number.NaN])).toEqual([0, 1]);
    const [low, high] = extent([5]);
    expect(low < 5 && high > 5).toBe(true);
    expect(extent([-1, 0, 4, 8], true, 0)).toEqual([4, 8]);
  });
  it("count every sample once", () => {
    expect(bin([0, 0.5, 1, 1, Number.NaN], [0, 1], 2)).toEqual([1, 3]);
  });
});

describe("numbers", () => {
  it("are short", () => {
    expect([show(1234567), show(0.12345), show(-2.5), show(null), show(1e-7), show(Infinity)]).toEqual([
      "1,234,567",
      "0.1235",
      "−2.5",
      "–",
      "1.00e-7".replace("-", "−"),
      "∞",
    ]);
    expect([percent(0.5), percent(0.00001), percent(1)]).toEqual(["50.0 %", "< 0.01 %", "100 %"]);
    expect([byteSize(512), byteSize(5.63 * 2 ** 20)]).toEqual(["512 B", "5.63 MiB"]);
    expect([compact(950), compact(66_600), compact(-1.5e9)]).toEqual(["950", "66.6 k", "−1.50 G"]);
    expect([duration(3.21), duration(450), duration(61_000)]).toEqual(["3.2 ms", "450 ms", "1 min 1 s"]);
  });
});

describe("a chance under settings", () => {
  it("says the model's own where it is another", () => {
    expect(sampledPercent(1, 0.33)).toBe(`${percent(1)} (${percent(0.33)})`);
    expect(sampledPercent(0.33, 0.33)).toBe(percent(0.33));
  });
});

describe("the legend of a heat map", () => {
  const grey = (value: number): [number, number, number] => [value, value, value];
  it("has the ends of the scale, and 0 where it has two sides", () => {
    expect(legendOf({ low: -2, high: 2 }, true, grey).map((entry) => entry.name)).toEqual([show(-2), "0", "2"]);
    expect(legendOf({ low: 1, high: 3 }, false, grey)).toEqual([
      { name: "1", colour: "rgb(1, 1, 1)", look: "block" },
      { name: "3", colour: "rgb(3, 3, 3)", look: "block" },
    ]);
  });
});

describe("colours", () => {
  it("go from end to end", () => {
    const pixels = table(["#000000", "#ff8000"]);
    expect(pixels[0]).toBe(0xff000000);
    expect(pixels[255]).toBe(0xff0080ff);
    expect(mix([rgb("#000"), rgb("#fff")], 0.5)).toEqual([128, 128, 128]);
  });
  it("put readable text on any of them", () => {
    for (let grey = 0; grey < 256; grey += 1) {
      const ground = luminance([grey, grey, grey]);
      const text = over([grey, grey, grey]) === "#000000" ? 0 : 1;
      const [light, dark] = [Math.max(ground, text), Math.min(ground, text)];
      expect((light + 0.05) / (dark + 0.05)).toBeGreaterThan(4.5);
    }
  });
});

describe("matrices", () => {
  const matrix = { rows: 3, columns: 3, values: Float32Array.from([1, 0, 0, 5, 2, 0, 0, 0, 9]) };
  it("keep their peaks when they get coarser", () => {
    const half = coarser(matrix);
    expect([half.rows, half.columns, [...half.values]]).toEqual([2, 2, [5, 0, 0, 9]]);
  });
  it("keep the point under the pointer when zoomed", () => {
    const big = { rows: 1000, columns: 1000, values: new Float32Array(0) };
    const view = zoomed({ x: 0, y: 0, zoom: 1 }, 4, 0.3, 0.6, big);
    expect(view.x + 0.3 / view.zoom).toBeCloseTo(0.3);
    expect(view.y + 0.6 / view.zoom).toBeCloseTo(0.6);
    expect(zoomed(view, 1e-9, 0.5, 0.5, big)).toEqual({ x: 0, y: 0, zoom: 1 });
    expect(clampView({ x: 5, y: -1, zoom: 2 })).toEqual({ x: 0.5, y: 0, zoom: 2 });
  });
  it("are read from bytes", () => {
    const bytes = Uint8Array.from([255, 255, 0, 0, 0, 128, 1, 0]);
    expect([...weights(bytes.buffer, 2, 2).values]).toEqual([65535, 0, 32768, 1]);
  });
  it("give their strongest pairs", () => {
    expect(links(matrix, [1, 3], [0, 3], 2)).toEqual([
      { row: 1, column: 0, weight: 5 },
      { row: 1, column: 1, weight: 2 },
      { row: 2, column: 2, weight: 9 },
    ]);
    expect(strongest(matrix, 1, 1)).toEqual([{ row: 1, column: 0, weight: 5 }]);
  });
});

describe("tokens", () => {
  const tokens = ["<s>", "user", "\n", "Why", " is", " the", " sky", "?", "</s>"];
  it("are found by their text", () => {
    expect(locate(tokens, "Why is the sky?", 0)).toEqual([3, 8]);
    expect(locate(tokens, " the sky ", 4)).toEqual([5, 7]);
    expect(locate(tokens, "Warum", 0)).toBeNull();
    expect(locate(tokens, "  ", 0)).toBeNull();
  });
  it("that are parts of a character stand together", () => {
    const bytes = ["a", " ⟨F0 9F⟩", "⟨99⟩", "⟨82⟩", "!", "⟨E4⟩"];
    expect(pieces(bytes, 0, 6).map((piece) => piece.text)).toEqual(["a", " 🙂", "!", "⟨E4⟩"]);
    expect(locate(bytes, "🙂!", 0)).toEqual([1, 5]);
  });
  it("can be seen", () => expect([visible(" a"), visible("\n"), visible("")]).toEqual(["·a", "⏎", "∅"]));
  it("are tinted by weight, whatever the first one takes", () => {
    const found = tints([
      { key: 0, weight: 0.9 },
      { key: 4, weight: 0.04 },
      { key: 5, weight: 0.01 },
    ]);
    expect([found.get(0), found.get(4), found.get(5)]).toEqual([1, 1, 0.5]);
    expect(tints([]).size).toBe(0);
  });
});

describe("score parts", () => {
  const parts = [
    { name: "content", of: "content", values: [2, null, -1] },
    { name: "fast", of: "position", values: [-0.5, null, 0.25] },
    { name: "slow", of: "position", values: [1, null, 0.5] },
  ];
  it("stack away from zero and add up", () => {
    const bars = stacked(parts, 0);
    expect(bars).toEqual([
      { from: 0, to: 2 },
      { from: 0, to: -0.5 },
      { from: 2, to: 3 },
    ]);
    expect(bars.reduce((sum, bar) => sum + bar.to - bar.from, 0)).toBe(2.5);
  });
  it("can be added up by where they come from", () => {
    expect(grouped(parts).map((part) => [part.name, ...part.values])).toEqual([
      ["content", 2, null, -1],
      ["position", 0.5, null, 0.75],
    ]);
  });
  it("show the last keys or the largest", () => {
    expect(pickKeys([1, null, 5, 3], "near", 2)).toEqual([2, 3]);
    expect(pickKeys([1, null, 5, 3], "large", 2)).toEqual([2, 3]);
    expect(pickKeys([9, null, 5, 7], "large", 2)).toEqual([0, 3]);
  });
});

describe("tables", () => {
  it("sort with nothing last, both ways", () => {
    expect(sorted([3, null, 1], (x) => x)).toEqual([1, 3, null]);
    expect(sorted([3, null, 1], (x) => x, true)).toEqual([3, 1, null]);
    expect(sorted(["b", "a"], (x) => x)).toEqual(["a", "b"]);
  });
  it("quote what needs it", () => expect(csv([["a,b", 'c"d', null, 1]])).toBe('"a,b","c""d",,1\r\n'));
  it("hold every value of a figure", () => {
    const text = figureCsv({
      name: "f",
      caption: "",
      panels: [
        {
          kind: "lines",
          title: "t",
          x_label: "n",
          y_label: "ms",
          lines: [{ name: "a", x: [1, 2], y: [3, null], low: [2, 2], high: [4, 4], look: "solid" }],
          log_x: false,
          log_y: false,
          marks: [["chance", 0.5]],
        },
        {
          kind: "heat",
          title: "h",
          x_label: "",
          y_label: "",
          values: [[1, null]],
          x_ticks: ["x0", "x1"],
          y_ticks: null,
          diverging: false,
          written: false,
        },
      ],
    });
    expect(text.split("\r\n")).toEqual([
      "panel,line,n,ms,low,high",
      "t,a,1,3,2,4",
      "t,a,2,,2,4",
      "t,chance,,0.5,,",
      "",
      "panel,row,column,value",
      "h,0,x0,1",
      "h,0,x1,",
      "",
    ]);
  });
});

describe("an encoding in words", () => {
  const plain = { name: "rope", title: "RoPE", values: {}, swapped: true, untrained: false, same: false };
  it("is the model's own, or another with what is not as it comes", () => {
    expect(spoken({ ...plain, swapped: false, values: { base: 100_000 } })).toBe("its own (RoPE)");
    expect(spoken(plain)).toBe("RoPE");
    expect(spoken({ ...plain, values: { base: 500, max_distance: 8, pairing: "halves" } })).toBe(
      "RoPE, base 500, max distance 8, pairing halves",
    );
  });
  it("names a file without signs that a file cannot have", () => {
    expect(slug({ ...plain, swapped: false })).toBe("own-rope");
    expect(slug({ ...plain, swapped: false, name: null, title: "rope, shifted" })).toBe("own-rope-shifted");
    expect(slug({ ...plain, name: "alibi", values: { slopes: "0.5, 0.25/../x" } })).toBe("alibi-slopes-0.5-0.25-..-x");
  });
  it("stands in the last column of a table", () => {
    const rows = [["query", "weight"], [0, 1]];
    const side = (encoding: typeof plain | null) => ({ encoding }) as Parameters<typeof encoded>[0];
    expect(encoded(side(null), rows)).toEqual(rows);
    expect(encoded(side(plain), rows)).toEqual([["query", "weight", "encoding"], [0, 1, "RoPE"]]);
    expect(file(side(plain), "lines", "self", 3)).toBe("lines-self-3-rope");
  });
  it("cannot break the picture it is written into", () => {
    expect(escaped('a<b & "c">')).toBe("a&lt;b &amp; &quot;c&quot;&gt;");
  });
});

describe("images in a conversation", () => {
  const tokens = ["a", "<i>", "<i>", "<i>", "b", "<i>"];
  const places = [
    { start: 1, tokens: 3 },
    { start: 5, tokens: 1 },
  ];

  it("makes one chip of an image's tokens", () => {
    const chips = withImages(tokens, places);
    expect(chips.map(({ from, to, image }) => [from, to, image])).toEqual([
      [0, 1, 0],
      [1, 4, 1],
      [4, 5, 0],
      [5, 6, 2],
    ]);
    expect(withImages(["a", "b"], []).map((chip) => chip.text)).toEqual(["a", "b"]);
  });

  it("names what is looked at", () => {
    expect([0, 2, 5, 9].map((key) => nameOf(key, tokens, places))).toEqual(["a", "image 1", "image 2", "?"]);
    expect(nameOf(3, tokens, places.slice(0, 1))).toBe("the image");
  });

  it("tells a file by its first bytes and refuses in words", () => {
    const bytes = (text: string) => Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const png = bytes("\x89PNG\r\n\x1a\n\0\0\0\0");
    expect(kindOf(png)).toBe("image/png");
    expect(kindOf(bytes("\xff\xd8\xff\xe0"))).toBe("image/jpeg");
    expect(kindOf(bytes("RIFF\x01\x02\x03\x04WEBP"))).toBe("image/webp");
    expect(kindOf(bytes("GIF89a"))).toBeNull();
    expect(whyNot("a.png", 10, png)).toBeNull();
    expect(whyNot("a.gif", 10, bytes("GIF89a"))).toContain("“a.gif” is no image that can be read here");
    expect(whyNot("a.png", 0, png)).toBe("“a.png” is empty.");
    expect(whyNot("a.png", 30 * 2 ** 20, png)).toMatch(/at most 24(\.0)? MiB/);
  });
});
