// The live view of `--watch`: on a terminal one block of lines, redrawn in place once a second until q or Ctrl-C;
// without one a block a second. One write per frame and no clearing before it, so nothing flickers.
import type { Terminal } from "./terminal.ts";
import { count } from "./words.ts";

export interface Size {
  readonly columns: number;
  /** Infinite without a terminal. */
  readonly rows: number;
}

/** In raw mode Ctrl-C and Ctrl-D are keys. */
const STOP_KEYS = ["q", "Q", "\u0003", "\u0004"];
const EVERY_MS = 1_000;
const HIDE_CURSOR = "\u001b[?25l";
const SHOW_CURSOR = "\u001b[?25h";
/** A line too long for a narrow screen is cut, so that a frame keeps its height. */
const NO_WRAP = "\u001b[?7l";
const WRAP = "\u001b[?7h";
const CLEAR_LINE = "\u001b[K";
const CLEAR_BELOW = "\u001b[J";
const CLEAR_ALL = "\u001b[2J\u001b[H";
/** Terminals that support it show a frame only when it is complete; the others ignore it. */
const FRAME_BEGINS = "\u001b[?2026h";
const FRAME_ENDS = "\u001b[?2026l";

/** Calls `frame` once a second and shows its lines until the user ends it. */
export async function watch(terminal: Terminal, frame: (size: Size) => Promise<readonly string[]>): Promise<void> {
  const stop = untilAsked();
  const screen = terminal.isTty ? liveScreen() : plainScreen(terminal.json ? "" : "\n");
  try {
    for (;;) {
      const startedAt = performance.now();
      screen.show(await frame(screen.size()));
      if (await stop.within(Math.max(50, EVERY_MS - (performance.now() - startedAt)))) return;
    }
  } finally {
    screen.end();
    stop.end();
  }
}

interface Screen {
  readonly size: () => Size;
  readonly show: (lines: readonly string[]) => void;
  readonly end: () => void;
}

function liveScreen(): Screen {
  const { stdout } = process;
  let drawn = 0;
  const resized = (): void => {
    stdout.write(CLEAR_ALL);
    drawn = 0;
  };
  stdout.write(HIDE_CURSOR + NO_WRAP);
  stdout.on("resize", resized);
  return {
    size: () => ({ columns: stdout.columns ?? 80, rows: (stdout.rows ?? 24) - 1 }),
    show(lines) {
      const shown = lines.slice(0, Math.max(1, (stdout.rows ?? 24) - 1));
      const up = drawn > 0 ? `\u001b[${drawn}A\r` : "";
      drawn = shown.length;
      const text = shown.map((line) => `${line}${CLEAR_LINE}\r\n`).join("");
      stdout.write(`${FRAME_BEGINS}${up}${text}${CLEAR_BELOW}${FRAME_ENDS}`);
    },
    end() {
      stdout.off("resize", resized);
      stdout.write(WRAP + SHOW_CURSOR);
    },
  };
}

function plainScreen(between: string): Screen {
  let first = true;
  return {
    size: () => ({ columns: 120, rows: Number.POSITIVE_INFINITY }),
    show(lines) {
      process.stdout.write(`${first ? "" : between}${lines.join("\n")}\n`);
      first = false;
    },
    end: () => {},
  };
}

/** q, Ctrl-C, SIGTERM, or the reader of stdout is gone. */
function untilAsked(): { within: (ms: number) => Promise<boolean>; end: () => void } {
  const { stdin, stdout } = process;
  const asked = new AbortController();
  const ask = (): void => asked.abort();
  const key = (data: Buffer): void => {
    if (STOP_KEYS.some((stop) => data.toString().includes(stop))) ask();
  };
  const raw = stdin.isTTY && stdout.isTTY;
  if (raw) {
    stdin.setRawMode(true);
    stdin.on("data", key);
  }
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const signal of signals) process.on(signal, ask);
  stdout.on("error", ask);
  return {
    within: (ms) =>
      new Promise((resolve) => {
        if (asked.signal.aborted) return resolve(true);
        const finish = (): void => {
          clearTimeout(timer);
          asked.signal.removeEventListener("abort", finish);
          resolve(asked.signal.aborted);
        };
        const timer = setTimeout(finish, ms);
        asked.signal.addEventListener("abort", finish);
      }),
    end() {
      for (const signal of signals) process.off(signal, ask);
      if (!raw) return;
      stdin.off("data", key);
      stdin.setRawMode(false);
      stdin.pause();
    },
  };
}

// The progress of a long task: a line on stderr once a second, none if the task finishes sooner.

const PROGRESS_EVERY_MS = 1_000;

/** Call it with the current count, as often as you like. */
export function progress(
  remark: (text: string) => void,
  doing: string,
  now: () => number = () => performance.now(),
): (jobs: number) => void {
  let toldAt = now();
  return (jobs) => {
    if (now() - toldAt < PROGRESS_EVERY_MS) return;
    toldAt = now();
    remark(`${doing}: ${count(jobs, "job")} so far`);
  };
}
