// Images on their way to the model outlive a reload in the browser's own database: they are too large for what a tab
// remembers. Where there is none, they last as long as the page.

const DATABASE = "vantage";
const STORE = "images";
const TAB = "vantage-tab";
const DAYS = 14; // after which what a closed tab has left is forgotten

interface Kept {
  images: string[];
  at: number;
}

/** Of this tab: another one has a box of its own. */
function tab(): string {
  try {
    const known = sessionStorage.getItem(TAB);
    if (known) return known;
    const fresh = Math.random().toString(36).slice(2);
    sessionStorage.setItem(TAB, fresh);
    return fresh;
  } catch {
    return "";
  }
}

const settled = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((done, fail) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => fail(request.error ?? new Error("the browser keeps nothing"));
  });

let opening: Promise<IDBDatabase> | null = null;

function database(): Promise<IDBDatabase> {
  opening ??= (() => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    return settled(request);
  })();
  return opening;
}

const store = async (mode: IDBTransactionMode): Promise<IDBObjectStore> =>
  (await database()).transaction(STORE, mode).objectStore(STORE);

export async function keepImages(what: string, images: string[]): Promise<void> {
  try {
    const kept = await store("readwrite");
    const key = `${tab()} ${what}`;
    if (images.length) await settled(kept.put({ images, at: Date.now() } satisfies Kept, key));
    else await settled(kept.delete(key));
  } catch {
    // a browser that keeps nothing
  }
}

export async function keptImages(what: string): Promise<string[]> {
  try {
    await forgetOld();
    const kept = (await settled((await store("readonly")).get(`${tab()} ${what}`))) as Kept | undefined;
    return kept?.images ?? [];
  } catch {
    return [];
  }
}

async function forgetOld(): Promise<void> {
  const kept = await store("readwrite");
  const keys = await settled(kept.getAllKeys());
  for (const key of keys) {
    const { at } = (await settled(kept.get(key))) as Kept;
    if (Date.now() - at > DAYS * 86_400_000) kept.delete(key);
  }
}
