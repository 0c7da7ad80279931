// The pure parts of the attention, positions, cost, compare, studies and build pages.
import { describe, expect, it } from "vitest";
import { blocks } from "../src/components/Prose";
import { duration, tick } from "../src/lib/numbers";
import type { Matrix } from "../src/lib/matrix";
import { listed, rounded, valuesGone, valuesIn, valuesPatch } from "../src/lib/values";
import { nodes, runs } from "../src/pages/build/block";
import type { BlockEntry, BuildChoices } from "../src/generated/api";
import { settingsOf } from "../src/pages/build/settings";
import { example, suggestedQuery } from "../src/pages/attention/words";
import { budgetSeconds, filled, lengthsOf, models } from "../src/pages/compare/form";
import { framed } from "../src/pages/compare/report";
import { picture } from "../src/pages/positions/move";
import { indented, opening } from "../src/pages/studies/editor";
import { fits } from "../src/pages/studies/list";
import type { Parameter } from "../src/types";

const parameter = (name: string, plain: number | string): Parameter => ({ name, default: plain, help: "", low: null, high: null, choices: [] });

describe("values in the address", () => {
  const parameters = [parameter("base", 10_000), parameter("pairing", "halves")];
  it("are read by the type of their default, and left out where they are as they come", () => {
    expect(valuesIn(parameters, { "p.base": "500", "p.pairing": "neighbours", other: "1" })).toEqual({ base: 500, pairing: "neighbours" });
    expect(valuesIn(parameters, { "p.base": "many" })).toEqual({});
    expect(valuesPatch(parameters, { base: 10_000, pairing: "x" })).toEqual({ "p.base": null, "p.pairing": "x" });
    expect(valuesGone({ "p.base": "1", length: "4" })).toEqual({ "p.base": null });
    expect(listed(" a, b,,c ")).toEqual(["a", "b", "c"]);
    expect([rounded(7.4, true), rounded(123_456, true), rounded(0.123456, false)]).toEqual([7, 123_000, 0.123]);
  });
});

describe("numbers", () => {
  it("are brief beside an axis", () => {
    expect([tick(20_000_000), tick(1e10), tick(2.5e6), tick(5000)]).toEqual(["20 M", "10 G", "2.50 M", "5,000"]);
    expect([duration(840_000), duration(59_900), duration(7_260_000)]).toEqual(["14 min", "1 min", "2 h 1 min"]);
  });
});

describe("prose", () => {
  it("joins lines of a paragraph and keeps columns", () => {
    expect(blocks("one\ntwo\n\nA\n   1  2\n\n+--+\n|  |")).toEqual([
      { text: "one two", fixed: false },
      { text: "A\n   1  2\n\n+--+\n|  |", fixed: true },
    ]);
  });
});

describe("the editor", () => {
  it("indents lines, and takes an indent away", () => {
    const text = "def f():\nreturn 1";
    const more = indented(text, 9, 17, false);
    expect(more.text).toBe("def f():\n    return 1");
    expect(indented(more.text, 13, 13, true).text).toBe(text);
    expect(indented("a\nb", 0, 3, false).text).toBe("    a\n    b");
  });
  it("opens a line as deep as the one before, deeper after a colon", () => {
    expect(opening("def f():  # why", 15)).toBe("    ");
    expect(opening("    x = 1", 9)).toBe("    ");
    expect(opening("x = 1", 5)).toBe("");
  });
});

describe("comparing", () => {
  it("reads a budget", () => {
    expect(["14m", "90s", "1.5h", "20", "soon", ""].map(budgetSeconds)).toEqual([840, 90, 5400, 20, null, null]);
  });
  it("has no budget where steps are said", () => {
    const defaults = { tasks: ["a"], positions: ["b"], attention: ["c"], train_length: 20, test_lengths: [20], seeds: 3, steps: null, budget: "14m", batch: 32, width: 64, layers: 2, heads: 4, test_examples: 256 };
    const choices = { tasks: [], positions: [], attention: [], control: "bag", about: {}, controlled: ["order"], defaults };
    const form = { ...filled(choices, {}), tasks: ["order", "copy"], positions: ["rope", "bag"] };
    expect(models(form, choices)).toBe(9);
    expect(filled(choices, {})).toMatchObject({ budget: "14m", steps: null, test_lengths: [20] });
    expect(filled(choices, { steps: "5", test_lengths: "8,16" })).toMatchObject({ budget: null, steps: 5, test_lengths: [8, 16] });
  });
  it("keeps the ways within a report and takes dead ones out", () => {
    expect(framed('<a href="#short">In short</a> <a href="scores.csv">scores.csv</a>')).toBe('<a href="#short">In short</a> <code>scores.csv</code>');
  });
});

describe("a moved token", () => {
  it("is drawn for the keys that are seen", () => {
    const moved = { tokens: ["a", " b", " c"], before: [0.5, 0.5, 0], after: [1, 0, 0], scores_before: [1, 1, null], scores_after: [2, 0, null] };
    const [weights, scores] = picture(moved, [0, 1], 1).panels;
    expect(weights).toMatchObject({ labels: ["a 0", "·b 1"], series: [["before", [0.5, 0.5]], ["after", [1, 0]]] });
    expect(scores).toMatchObject({ series: [["before", [1, 1]], ["after", [2, 0]]] });
  });
});

describe("the list of studies", () => {
  it("finds all words, wherever they stand", () => {
    const study = { tag: "P10", title: "ALiBi", sources: [], statement: "a slope for each head", explanation: "", parameters: [], seconds: 1, trains: false, needs: [] };
    expect([fits(study, "slope alibi"), fits(study, "p10"), fits(study, "slope rope"), fits(study, "")]).toEqual([true, true, false, true]);
  });
});

const block: BlockEntry = {
  name: "layer 0", mask: "Causal()", window: null, position: ["Rope"], attention: "GroupedQuery", around: [], heads: 8, kv_heads: 2, head_width: 64,
  cross: false, ffn: "gelu", norm: "RMSNorm", wiring: "pre", stack: "decoder",
}; // prettier-ignore

describe("the drawing of a block", () => {
  const shape = (one: BlockEntry) => nodes(one).map((node) => node.kind).join(" ");
  it("follows the wiring", () => {
    expect(shape(block)).toBe("norm attention add norm ffn add");
    expect(shape({ ...block, wiring: "post" })).toBe("attention add norm ffn add norm");
    expect(shape({ ...block, wiring: "sandwich" })).toBe("norm attention norm add norm ffn norm add");
    expect(shape({ ...block, wiring: "parallel" })).toBe("norm attention ffn add");
    expect(shape({ ...block, cross: true })).toBe("norm attention add norm attention add norm ffn add");
  });
  it("says what an attention has beside its heads", () => {
    const around = ["shared keys", "gated output"];
    const texts = (one: BlockEntry) => nodes(one).filter((node) => node.kind === "attention").map((node) => node.around);
    expect(texts({ ...block, around, cross: true })).toEqual(["with shared keys, gated output", undefined]);
    expect(texts(block)).toEqual([undefined]);
  });
  it("goes around each part, up to its sum", () => {
    expect(nodes(block).map((node) => node.until)).toEqual([2, undefined, undefined, 5, undefined, undefined]);
    expect(nodes({ ...block, wiring: "parallel" }).map((node) => node.row)).toEqual([0, 1, 1, 2]);
  });
  it("tells the kinds of layer apart", () => {
    const layers = [0, 1, 2, 3].map((index) => ({ ...block, name: `layer ${index}`, window: index % 2 ? null : 64 }));
    expect(runs(layers).map((run) => run.layers)).toEqual([[0, 2], [1, 3]]);
  });
});

describe("the settings of a model", () => {
  const defaults = { attention: "grouped-query", position: { name: "rope", values: {} }, kind: "decoder", heads: 8, kv_heads: null, tied: false, shared: false, full_position: "same" };
  const option = (...kinds: string[]) => ({ help: "", low: 1, high: 512, choices: [], kinds });
  const both = option("decoder", "encoder", "encoder_decoder");
  const options = { heads: both, kv_heads: both, tied: option("decoder", "encoder_decoder"), shared: option("encoder_decoder") };
  const choices = { positions: [{ name: "rope", title: "", about: "", parameters: [parameter("base", 10_000)] }], options, defaults } as unknown as BuildChoices;
  it("leave out what the chosen attention does not have", () => {
    expect(settingsOf(choices, { kv_heads: "2" })).toMatchObject({ kv_heads: 2, latent: null });
    expect(settingsOf(choices, { attention: "latent", kv_heads: "2" })).toMatchObject({ kv_heads: null, latent: { kv_rank: 128 } });
    expect(settingsOf(choices, { heads: "4", tied: "true" })).toMatchObject({ heads: 4, tied: true, kv_heads: null });
    expect(settingsOf(choices, { kind: "encoder", tied: "true" })).toMatchObject({ tied: false });
    expect(settingsOf(choices, { kind: "encoder_decoder", one_table: "true" })).toMatchObject({ shared: true, experts: null });
    expect(settingsOf(choices, { "p.base": "99", full_position: "none" })).toMatchObject({ position: { values: { base: 99 } }, full_position: "same" });
  });
});

describe("what a head does, in words", () => {
  const tokens = ["a", "b", "a", "b"];
  const map = (cells: [number, number, number][]): Matrix => {
    const values = new Uint16Array(16);
    for (const [query, key, share] of cells) values[query * 4 + key] = Math.round(share * 65535);
    return { rows: 4, columns: 4, values };
  };
  it("names the clearest pair of its kind", () => {
    expect(example("induction", map([[2, 1, 0.9], [3, 2, 0.5]]), tokens)).toBe("At “a” (2) it attends to what followed the previous “a”: “b”, 90.0 %.");
    expect(example("itself", map([[1, 1, 0.25], [3, 3, 0.75]]), tokens)).toBe("At “b” (3) 75.0 % of the weight is on that token itself.");
  });
  it("says where most of the weight is, where no kind is clear", () => {
    expect(example("mixed", map([[0, 0, 1], [1, 1, 1], [2, 1, 1], [3, 1, 1]]), tokens)).toBe("On average 75.0 % of its weight is on “b” (1), more than on any other token.");
  });
  it("suggests a query where other lines hide what the head does", () => {
    const matrix = map([[2, 1, 0.9], [3, 2, 0.5]]);
    expect(suggestedQuery("induction", matrix, tokens)).toBe(2);
    expect(suggestedQuery("previous", matrix, tokens)).toBe(null);
  });
});

describe("lengths that are typed", () => {
  it("are numbers, or nothing at all", () => {
    expect(lengthsOf("20, 30,")).toBe("20,30");
    expect(lengthsOf("20 30")).toBe("20,30");
    for (const wrong of ["", "long", "20, x", "20, -3", "1.5"]) expect(lengthsOf(wrong)).toBe(null);
  });
});
