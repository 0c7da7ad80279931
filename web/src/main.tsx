import { render } from "preact";
import { readToken } from "./api";
import { App } from "./app";
import { listen } from "./router";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/controls.css";
import "./styles/charts.css";
import "./styles/parts.css";
import { startTheme } from "./theme";

readToken();
startTheme();
listen();
const root = document.getElementById("app");
if (root) render(<App />, root);
