import { defineConfig } from "vitest/config";

// Relative addresses, so that the page works under any path the server gives it. One entry, and each page its own
// chunk: the first paint waits only for the shell.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../vantage/serve/studio/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  test: { include: ["test/**/*.test.ts"], environment: "node" },
});
