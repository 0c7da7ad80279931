// Light or dark: what the system says, or what the reader chose. Charts read their colours from the same properties.
import { computed, effect, signal } from "@preact/signals";

export type Choice = "system" | "light" | "dark";

const KEY = "vantage-theme";

function stored(): Choice {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // storage may be forbidden; the theme then lasts as long as the page
  }
}

export const choice = signal<Choice>(typeof document === "undefined" ? "system" : stored());
const system = signal<"light" | "dark">("light");
export const theme = computed(() => (choice.value === "system" ? system.value : choice.value));

export interface Paint {
  text: string;
  muted: string;
  line: string;
  surface: string;
  accent: string;
  danger: string;
  series: string[];
  /** From nothing to much. */
  ramp: string[];
  /** From much below zero over zero to much above. */
  diverging: string[];
}

const list = (style: CSSStyleDeclaration, name: string): string[] =>
  style
    .getPropertyValue(name)
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);

/** The colours of the theme that is shown. Read it while drawing: what reads it is drawn anew when the theme changes. */
export const paint = computed<Paint>(() => {
  document.documentElement.dataset.theme = theme.value;
  const style = getComputedStyle(document.documentElement);
  const one = (name: string) => style.getPropertyValue(name).trim();
  return {
    text: one("--text"),
    muted: one("--muted"),
    line: one("--line"),
    surface: one("--surface"),
    accent: one("--accent"),
    danger: one("--danger"),
    series: list(style, "--series"),
    ramp: list(style, "--ramp"),
    diverging: list(style, "--diverging"),
  };
});

export function startTheme(): void {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => (system.value = query.matches ? "dark" : "light");
  follow();
  query.addEventListener("change", follow);
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
  });
  effect(() => {
    try {
      if (choice.value === "system") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, choice.value);
    } catch {
      // as above
    }
  });
}
