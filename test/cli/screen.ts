// A terminal for tests: `script` of util-linux gives the CLI a real one, and what the CLI writes is drawn here as a terminal would.
import { type ChildProcessByStdio, spawn, spawnSync } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import type { TestContext } from "node:test";
import { cleanEnv, NODE } from "../support/cli.ts";

/** Why there can be no real terminal here; false: there can. */
export const noTerminal: string | false =
  process.platform === "linux" && spawnSync("script", ["--version"]).status === 0
    ? false
    : "`script` of util-linux is not on this machine";

const FRAME_END = "\u001b[?2026l";

export class TerminalRun {
  readonly child: ChildProcessByStdio<Writable, Readable, null>;
  readonly ended: Promise<number | null>;
  written = "";
  readonly #heard = new Set<() => void>();

  constructor(t: TestContext, size: { columns: number; rows: number }, args: readonly string[], store: string) {
    const command = [...NODE, ...args].map((word) => `'${word}'`).join(" ");
    const line = `stty cols ${size.columns} rows ${size.rows}; exec ${command}`;
    this.child = spawn("script", ["-qec", line, "/dev/null"], {
      stdio: ["pipe", "pipe", "inherit"],
      env: cleanEnv({ TERM: "xterm-256color", SHELL: "/bin/sh", OUTLIVE_STORE: store }),
    });
    t.after(() => void this.child.kill("SIGKILL"));
    this.child.stdout.setEncoding("utf8").on("data", (text: string) => {
      this.written += text;
      for (const hear of this.#heard) hear();
    });
    this.ended = new Promise((resolve) => {
      this.child.on("close", (code) => {
        resolve(code);
        for (const hear of this.#heard) hear();
      });
    });
  }

  press(keys: string): void {
    this.child.stdin.write(keys);
  }

  /** Resolves with the screen as soon as it is so. */
  until(is: (screen: readonly string[]) => boolean, what: string): Promise<readonly string[]> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => done(new Error(`never seen: ${what}\n${drawn(this.written).join("\n")}`)), 60_000);
      const hear = (): void => {
        // A frame comes in pieces; a screen is what the whole ones have drawn.
        const screen = drawn(this.written.slice(0, this.written.lastIndexOf(FRAME_END) + FRAME_END.length));
        if (is(screen)) done(null, screen);
        else if (this.child.exitCode !== null) done(new Error(`it ended before: ${what}\n${screen.join("\n")}`));
      };
      const done = (error: Error | null, screen: readonly string[] = []): void => {
        clearTimeout(timer);
        this.#heard.delete(hear);
        if (error) reject(error);
        else resolve(screen);
      };
      this.#heard.add(hear);
      hear();
    });
  }

  /** How many whole frames were drawn. */
  get frames(): number {
    return this.written.split(FRAME_END).length - 1;
  }
}

/** The lines of the screen after these writes. Knows what the CLI uses and nothing else. */
export function drawn(written: string): string[] {
  const lines: string[] = [""];
  let row = 0;
  let column = 0;
  const put = (text: string): void => {
    const line = (lines[row] ?? "").padEnd(column);
    lines[row] = line.slice(0, column) + text + line.slice(column + text.length);
    column += text.length;
  };
  // oxlint-disable-next-line no-control-regex -- a terminal is made of them
  for (const [token] of written.matchAll(/\u001b\[[?\d;]*[A-Za-z]|\r|\n|[^\u001b\r\n]+/g)) {
    if (token === "\r") column = 0;
    else if (token === "\n") lines[++row] ??= "";
    else if (!token.startsWith("\u001b")) put(token);
    else if (token.endsWith("A")) row = Math.max(0, row - Number(token.slice(2, -1)));
    else if (token === "\u001b[K") lines[row] = (lines[row] ?? "").slice(0, column);
    else if (token === "\u001b[J") {
      lines[row] = (lines[row] ?? "").slice(0, column);
      lines.length = row + 1;
    }
  }
  return lines;
}
