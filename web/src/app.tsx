// The shell: the way between the pages, the theme, and word of a server that is gone.
import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { connected, Trouble } from "./api";
import { Button } from "./components/controls";
import { Busy, Problem } from "./components/state";
import { asTrouble } from "./hooks";
import { refreshModels } from "./models";
import { href, lastHref, missing, route } from "./router";
import { type Choice, choice } from "./theme";
import { Tour, TourButton } from "./tour";

interface PageEntry {
  id: string;
  title: string;
  load: () => Promise<{ default: ComponentType }>;
}

export const PAGES: PageEntry[] = [
  { id: "chat", title: "Chat", load: () => import("./pages/chat") },
  { id: "attention", title: "Attention", load: () => import("./pages/attention") },
  { id: "lens", title: "Lens", load: () => import("./pages/lens") },
  { id: "positions", title: "Positions", load: () => import("./pages/positions") },
  { id: "cost", title: "Cache & cost", load: () => import("./pages/cost") },
  { id: "compare", title: "Compare", load: () => import("./pages/compare") },
  { id: "studies", title: "Studies", load: () => import("./pages/studies") },
  { id: "build", title: "Build", load: () => import("./pages/build") },
];

const loaded = new Map<string, ComponentType>();

export function App() {
  const page = PAGES.find((entry) => entry.id === route.value.page);
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    document.title = page ? `${page.title} · Vantage studio` : "Vantage studio";
    if (first.current) first.current = false;
    else main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
    // On a narrow screen the list of pages is a strip: the one that is shown must be in sight.
    const strip = nav.current;
    const here = strip?.querySelector<HTMLElement>('a[aria-current="page"]');
    if (strip && here && strip.scrollWidth > strip.clientWidth) {
      strip.scrollLeft += here.getBoundingClientRect().left - strip.getBoundingClientRect().left - 16;
    }
  }, [page?.id]);
  return (
    <div class="shell">
      <a
        class="skip"
        href={href(route.value.page, route.value.params)}
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the page
      </a>
      <header class="side">
        <a class="brand" href={lastHref("chat")}>
          <Mark />
          Vantage
        </a>
        <nav aria-label="Pages" ref={nav}>
          <ul>
            {PAGES.map((entry) => (
              <li key={entry.id}>
                <a href={lastHref(entry.id)} aria-current={entry === page ? "page" : undefined}>
                  {entry.title}
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <div class="row">
          <TourButton />
          <ThemeSwitch />
        </div>
      </header>
      <div class="content">
        <Gone />
        <Lost />
        <main ref={main} tabIndex={-1} id="main">
          {page ? <PageRoom key={page.id} entry={page} /> : <Unknown name={route.value.page} />}
        </main>
      </div>
      <Tour />
    </div>
  );
}

function Unknown({ name }: { name: string }) {
  return (
    <div class="stack">
      <h1>There is no page “{name}”</h1>
      <p>
        Choose a page from the menu, or go to <a href={href("chat")}>Chat</a>.
      </p>
    </div>
  );
}

/** Brings a page's code, and holds an error of that page so that the rest stays usable. */
function PageRoom({ entry }: { entry: PageEntry }) {
  const [Page, setPage] = useState<ComponentType | null>(() => loaded.get(entry.id) ?? null);
  const [trouble, setTrouble] = useState<Trouble | null>(null);
  const [since] = useState(performance.now());
  const bring = () => {
    setTrouble(null);
    entry.load().then(
      (module) => {
        loaded.set(entry.id, module.default);
        setPage(() => module.default);
      },
      () => {
        connected.value = false;
        setTrouble(
          new Trouble(
            "gone",
            "This page could not be loaded.",
            "Is `vantage studio` still running? Start it again, then reload.",
          ),
        );
      },
    );
  };
  useEffect(() => {
    if (!Page) bring();
  }, []);
  useEffect(() => {
    if (Page) performance.mark("page-shown");
  }, [Page !== null]);
  if (trouble) return <Problem trouble={trouble} retry={() => location.reload()} />;
  if (!Page) return <Busy words={`Opening ${entry.title}`} since={since} />;
  return (
    <Fence>
      <Page />
    </Fence>
  );
}

class Fence extends Component<{ children: ComponentChildren }, { error: Error | null }> {
  override state = { error: null };

  static override getDerivedStateFromError(error: unknown) {
    return { error: error instanceof Error ? error : new Error(String(error)) };
  }

  override componentDidCatch(error: unknown) {
    console.error(error);
  }

  render() {
    const { error } = this.state as { error: Error | null };
    if (!error) return this.props.children;
    const trouble = new Trouble(
      "broken",
      `This page failed: ${error.message}`,
      "The other pages still work. Retry to load it again.",
    );
    return <Problem trouble={asTrouble(trouble)} retry={() => this.setState({ error: null })} />;
  }
}

/** A link whose text stayed in the browser that it was made in. */
function Lost() {
  if (!missing.value.length) return null;
  return (
    <div class="banner" role="status">
      <span>
        This link refers to a long text that is stored only in the browser where the link was made. The page is shown without it.
      </span>
      <Button little onClick={() => (missing.value = [])}>
        Close
      </Button>
    </div>
  );
}

/** Stands at the top while the server does not answer, and asks every few seconds whether it is back. */
function Gone() {
  useEffect(() => {
    if (connected.value) return;
    const timer = setInterval(() => void refreshModels(), 4000);
    return () => clearInterval(timer);
  }, [connected.value]);
  if (connected.value) return null;
  return (
    <div class="banner" role="alert">
      <span>
        The server does not answer. Start <code>vantage studio</code> again; this page reconnects by itself.
      </span>
      <Button little onClick={() => void refreshModels()}>
        Retry now
      </Button>
    </div>
  );
}

const NEXT: Record<Choice, Choice> = { system: "light", light: "dark", dark: "system" };
const NAMES: Record<Choice, string> = { system: "System", light: "Light", dark: "Dark" };

function ThemeSwitch() {
  const now = choice.value;
  return (
    <Button
      little
      look="quiet"
      label={`Theme: ${NAMES[now]}. Change to ${NAMES[NEXT[now]]}.`}
      onClick={() => (choice.value = NEXT[now])}
    >
      Theme: {NAMES[now]}
    </Button>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="#0b6868" />
      <path
        d="M7 9l9 15 9-15"
        fill="none"
        stroke="#fff"
        stroke-width="3.2"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
      <circle cx="16" cy="10" r="2.4" fill="#fff" />
    </svg>
  );
}
