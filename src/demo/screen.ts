// The live view of a run. It reads the current state from the engine a few times a second and redraws one block of
// lines in place, never wider or higher than the terminal. Without a terminal it prints the same facts as plain lines,
// one a second.
import { setTimeout as pause } from "node:timers/promises";
import { styleText } from "node:util";
import type { Engine, EngineEvent } from "../index.ts";
import { type Percentiles, percentiles, type Recovery, RecoveryTimes } from "../torture/audit.ts";
import type { Fleet, Place, PlaceState } from "../torture/fleet.ts";
import { LEASE_MS } from "../torture/tables.ts";

export interface Screen {
  show(view: View): void;
  report(event: DemoEvent): void;
  /** Restores the terminal. Safe to call twice. */
  end(): void;
}

interface Headline {
  readonly title: string;
  readonly settings: string;
  readonly enqueuing: number;
}

/** How many of the latest events to show, if there is room. */
const MAX_EVENTS = 8;

const HIDE_CURSOR = "\u001b[?25l";
const SHOW_CURSOR = "\u001b[?25h";
const CLEAR_BELOW = "\u001b[J";
const CLEAR_LINE = "\u001b[K";

const INK_OF_STATE: Readonly<Record<WorkerView["state"], Ink>> = {
  starting: "yellow",
  live: "green",
  frozen: "cyan",
  dead: "red",
  stopped: "dim",
};

export function liveScreen(stream: NodeJS.WriteStream, head: Headline): Screen {
  const coloured = wantsColour(stream);
  let drawn = 0;
  let ended = false;
  stream.write(HIDE_CURSOR);
  stream.on("resize", () => {
    if (!ended) stream.write("\u001b[2J\u001b[H");
    drawn = 0;
  });
  return {
    show(view) {
      if (ended) return;
      const width = Math.max(20, (stream.columns ?? 80) - 1);
      const max = Math.max(4, (stream.rows ?? 24) - 1);
      const above = facts(head, view, width);
      const lines = [...above, ...latest(view.events, Math.min(MAX_EVENTS, max - above.length))].slice(0, max);
      const up = drawn > 0 ? `\u001b[${drawn}A\r` : "";
      drawn = lines.length;
      stream.write(
        `${up}${lines.map((parts) => `${paint(parts, width, coloured)}${CLEAR_LINE}\n`).join("")}${CLEAR_BELOW}`,
      );
    },
    report() {},
    end() {
      if (ended) return;
      ended = true;
      stream.write(SHOW_CURSOR);
    },
  };
}

export function plainScreen(stream: NodeJS.WriteStream, head: Headline): Screen {
  let nextAtMs = 0;
  stream.write(`${head.title} (${head.settings})\n`);
  return {
    show(view) {
      if (view.elapsedMs < nextAtMs) return;
      nextAtMs = view.elapsedMs + 1_000;
      const live = view.workers.filter(({ state }) => state === "live").length;
      stream.write(
        `${stamp(view.elapsedMs)}  ${thousands(view.succeeded)} of ${thousands(head.enqueuing)} done, ${Math.round(view.perSecond)}/s, ` +
          `${live} of ${view.workers.length} workers live, ${view.kills} kills, ${view.recovered} jobs recovered, ${view.quarantined} quarantined\n`,
      );
    },
    report({ atMs, text }) {
      stream.write(`${stamp(atMs)}  ${text}\n`);
    },
    end() {},
  };
}

function facts(head: Headline, view: View, width: number): Part[][] {
  const ended = view.succeeded + view.quarantined;
  const { p50, max } = view.recoveryMs;
  const last = view.lastRecovery;
  return [
    [],
    [["bold", ` ${head.title}`]],
    [["dim", ` ${head.settings}`]],
    [],
    [
      label("jobs"),
      ...bar(ended / head.enqueuing, Math.min(50, width - 44)),
      ["bold", `  ${thousands(ended)}`],
      ` of ${thousands(head.enqueuing)}`,
    ],
    [label(""), ["dim", `${thousands(view.ready)} ready, ${view.running} running`], quarantine(view.quarantined)],
    [],
    [
      label("throughput"),
      ["cyan", sparkline(view.rates, Math.min(50, width - 44))],
      ["bold", `  ${thousands(Math.round(view.perSecond))}`],
      " jobs/s",
    ],
    [],
    ...view.workers.map((worker, i): Part[] => [label(i === 0 ? "workers" : ""), ...workerLine(worker)]),
    [],
    [
      label("deaths"),
      ["red", String(view.kills)],
      " by SIGKILL, ",
      ["red", String(view.poisoned)],
      " by the poison job",
    ],
    [
      label("recovered"),
      ["green", thousands(view.recovered)],
      " jobs run again",
      ["dim", last ? `: last ${millis(last.backMs)}, median ${millis(p50)}, worst ${millis(max)}` : ""],
    ],
    [label("zombies"), ["cyan", String(view.zombies)], ", ", ["cyan", String(view.rejected)], " stale writes refused"],
    [],
  ];
}

function label(text: string): Part {
  return ["dim", ` ${text.padEnd(12)}`];
}

function quarantine(count: number): Part {
  return count === 0 ? "" : ["magenta", `, ${count} in quarantine`];
}

function bar(share: number, width: number): Part[] {
  const full = Math.round(Math.min(1, share) * width);
  return [
    ["green", "█".repeat(full)],
    ["dim", "░".repeat(Math.max(0, width - full))],
  ];
}

const LEVELS = "▁▂▃▄▅▆▇█";

function sparkline(rates: readonly number[], width: number): string {
  const shown = rates.slice(-width);
  const top = Math.max(1, ...shown);
  const levels = shown.map((rate) => LEVELS[Math.min(7, Math.floor((Math.max(0, rate) / top) * 8))]);
  return levels.join("").padEnd(width);
}

function workerLine({ number, state, pid, held, deaths, sinceMs }: WorkerView): Part[] {
  const doing =
    state === "frozen"
      ? `${seconds(sinceMs)} silent, the lease is ${seconds(LEASE_MS)}`
      : state === "live"
        ? `${"■".repeat(held)}${"·".repeat(Math.max(0, 8 - held))}`
        : "";
  return [
    ["bold", `${number} `],
    [INK_OF_STATE[state], `● ${state.padEnd(9)}`],
    ["dim", `pid ${String(pid).padEnd(9)}`],
    ["dim", (deaths === 0 ? "" : `died ${deaths}×`).padEnd(10)],
    [INK_OF_STATE[state], doing],
  ];
}

function latest(events: readonly DemoEvent[], max: number): Part[][] {
  if (max <= 0) return [];
  const inks = { bad: "red", good: "green", plain: null } as const;
  const shown = events.slice(-max);
  return Array.from({ length: max }, (_, i) => {
    const event = shown[i];
    if (!event) return [label(i === 0 ? "latest" : "")];
    return [label(i === 0 ? "latest" : ""), ["dim", stamp(event.atMs)], "  ", [inks[event.mood], event.text]];
  });
}

function stamp(ms: number): string {
  return seconds(ms).padStart(6);
}

// Colours and widths for a terminal: a line is a list of parts, cut to the width before it is painted.

type Ink = Parameters<typeof styleText>[0] | null;
export type Part = string | readonly [Ink, string];

/** One line of at most `width` columns. */
export function paint(parts: readonly Part[], width: number, coloured: boolean): string {
  let left = width;
  let line = "";
  for (const part of parts) {
    const [ink, text] = typeof part === "string" ? [null, part] : part;
    const cut = text.length > left ? `${text.slice(0, Math.max(0, left - 1))}…` : text;
    line += ink !== null && coloured ? styleText(ink, cut, { validateStream: false }) : cut;
    left -= cut.length;
    if (left <= 0) break;
  }
  return line;
}

export function wantsColour(stream: NodeJS.WriteStream): boolean {
  return stream.isTTY && stream.hasColors() && process.env["TERM"] !== "dumb";
}

export function thousands(value: number): string {
  return value.toLocaleString("en-US");
}

export function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(1)} s`;
}

export function millis(ms: number | null): string {
  return ms === null ? "-" : ms < 10_000 ? `${thousands(Math.round(ms))} ms` : seconds(ms);
}

export function count(value: number, one: string): string {
  return `${thousands(value)} ${one}${value === 1 ? "" : "s"}`;
}

// One line for people about an event of the engine in a worker process; most events need no line.

export function eventText(fleet: Fleet, at: Place, event: EngineEvent): Pick<DemoEvent, "text" | "mood"> | null {
  const me = `worker ${at.number}`;
  const who = (id: string): string => {
    const place = fleet.placeOf(id);
    return place === at.number ? "its predecessor" : `worker ${place ?? id}`;
  };
  switch (event.name) {
    case "worker.gone":
      return { text: `${me} found ${who(event.worker)} ${event.how}${evidence(event.evidence)}`, mood: "good" };
    case "recovery.completed":
      if (event.jobs === 0) return null;
      return { text: `${me} requeued ${count(event.jobs, "job")} in ${Math.round(event.durationMs)} ms`, mood: "good" };
    case "job.quarantined":
      return { text: `${event.jobId} is in quarantine: ${event.reason}`, mood: "good" };
    case "worker.disowned":
      return { text: `${me} learned that it was declared dead, with ${count(event.held, "job")}`, mood: "plain" };
    case "write.rejected": {
      const { jobId, fence } = event.lease;
      const now = event.fence === fence ? `the job is ${event.state}` : `attempt ${event.fence} has the job now`;
      return { text: `refused: "${event.tried}" of ${jobId} by ${me} in attempt ${fence}; ${now}`, mood: "good" };
    }
    case "recovery.failed":
      return { text: `${me} could not recover ${who(event.worker)}: ${event.error.message}`, mood: "bad" };
    case "job.failed":
    case "job.dead":
      return { text: `${me}: ${event.name} ${event.jobId}`, mood: "bad" };
    case "heartbeat.failed":
      // One late response means a busy store; the engine retries.
      if (event.failures < 3) return null;
      return { text: `${me}: ${event.failures} heartbeats in a row failed: ${event.error.message}`, mood: "bad" };
    case "store.failed":
    case "call.failed":
    case "listener.failed":
      return { text: `${me}: ${event.name}: ${event.error.message}`, mood: "bad" };
    case "worker.blocked":
      return { text: `the loop of ${me} stood still for ${event.loopLagMs} ms`, mood: "bad" };
    default:
      return null;
  }
}

function evidence(text: string | null): string {
  return text === null ? "" : `: ${text}`;
}

// The current state of a run, for the screen and for progress lines.

interface WorkerView {
  readonly number: number;
  readonly state: PlaceState;
  readonly pid: number;
  readonly held: number;
  readonly deaths: number;
  readonly sinceMs: number;
}

interface View {
  readonly elapsedMs: number;
  readonly ready: number;
  readonly running: number;
  readonly succeeded: number;
  readonly quarantined: number;
  readonly perSecond: number;
  /** Successes per second, one value per reading, the latest last. */
  readonly rates: readonly number[];
  readonly workers: readonly WorkerView[];
  readonly kills: number;
  readonly poisoned: number;
  readonly recovered: number;
  readonly lastRecovery: Recovery | null;
  readonly recoveryMs: Percentiles;
  readonly zombies: number;
  readonly rejected: number;
  readonly events: readonly DemoEvent[];
}

interface DemoEvent {
  readonly atMs: number;
  readonly text: string;
  readonly mood: "bad" | "good" | "plain";
}

const READ_EVERY_MS = 200;
/** The current rate is the average of this many readings. */
const RATE_READINGS = 5;

export class LiveView {
  readonly fleet: Fleet;
  readonly #events: DemoEvent[] = [];
  readonly #recoveries: RecoveryTimes;
  readonly #engine: Engine;
  readonly #began = performance.now();
  readonly #samples: { readonly at: number; readonly succeeded: number }[] = [];
  readonly #rates: number[] = [];
  readonly #zombies = new Set<string>();
  #refused = 0;
  #poisoned = 0;

  constructor(engine: Engine, fleet: Fleet) {
    this.#engine = engine;
    this.fleet = fleet;
    this.#recoveries = new RecoveryTimes(engine);
  }

  note(text: string, mood: DemoEvent["mood"] = "plain"): DemoEvent {
    const event = { atMs: performance.now() - this.#began, text, mood };
    this.#events.push(event);
    return event;
  }

  /** A job killed the worker in this place. */
  poisoned(place: number): DemoEvent {
    this.#poisoned++;
    return this.note(`worker ${place} was killed by the job it ran`, "bad");
  }

  /** The store refused a write of a worker that no longer owns the job. */
  refusedWrite(workerId: string): void {
    this.#refused++;
    this.#zombies.add(workerId);
  }

  /** Reads repeatedly until `signal`. */
  async watch(signal: AbortSignal, seen: (view: View) => void): Promise<void> {
    while (!signal.aborted) {
      seen(await this.read());
      await pause(READ_EVERY_MS, undefined, { signal }).catch(() => {});
    }
  }

  async read(): Promise<View> {
    const [counts, rows] = await Promise.all([this.#engine.counts(), this.#engine.workers()]);
    const sum = (of: (kind: (typeof counts)[number]) => number): number =>
      counts.reduce((total, kind) => total + of(kind), 0);
    const succeeded = sum((kind) => kind.succeeded);
    const recoveries = await this.#recoveries.of(this.fleet.kills);
    const now = Date.now();
    return {
      elapsedMs: performance.now() - this.#began,
      ready: sum((kind) => kind.ready + kind.delayed + kind.held),
      running: sum((kind) => kind.running),
      succeeded,
      quarantined: sum((kind) => kind.quarantined),
      perSecond: this.#rate(succeeded),
      rates: this.#rates,
      workers: this.fleet.places().map(({ number, state, pid, deaths, sinceAt, workerId }) => ({
        number,
        state,
        pid,
        deaths,
        sinceMs: now - sinceAt,
        held: rows.find((row) => row.id === workerId)?.heldCount ?? 0,
      })),
      kills: this.fleet.kills.length,
      poisoned: this.#poisoned,
      recovered: recoveries.reduce((total, { jobs, waiting }) => total + jobs - waiting.length, 0),
      lastRecovery: recoveries.findLast(({ backMs }) => backMs !== null) ?? null,
      recoveryMs: percentiles(recoveries.map(({ backMs }) => backMs)),
      zombies: this.#zombies.size,
      rejected: this.#refused,
      events: this.#events,
    };
  }

  #rate(succeeded: number): number {
    const at = performance.now();
    const before = this.#samples.at(-1);
    this.#samples.push({ at, succeeded });
    if (before) this.#rates.push(((succeeded - before.succeeded) / (at - before.at)) * 1_000);
    const recent = this.#rates.slice(-RATE_READINGS);
    return recent.length === 0 ? 0 : recent.reduce((a, b) => a + b, 0) / recent.length;
  }
}
