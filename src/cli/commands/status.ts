// `outlive status`: one screen about everything, and what to do next. `--check` is for machines, `--watch` for people.
import { Option } from "commander";
import { humanMs } from "../../job/time.ts";
import { type KindStatus, survey, type Survey, type Status, statusOf } from "../advice.ts";
import { duration } from "../context.ts";
import { watch, type Cell, type Column, ExitCode, grid, type Ink, jsonText, type Pen, wrap } from "../terminal.ts";
import { type Known, knownWorker, type KnownWorker, works } from "../lookup.ts";
import type { Register } from "../main.ts";
import { ago, count, cut, cutFront, oneLine, stamp, thousands } from "../words.ts";

interface Flags {
  readonly check?: boolean;
  readonly watch?: boolean;
  readonly maxAge: number;
}

export const statusCommand: Register = (program, run) => {
  program
    .command("status")
    .description("one screen: kinds, workers, incidents, the store's health, and what to do next")
    .option("--check", "exit with 1 if something needs a person")
    .option("--watch", "refresh every second, until q or Ctrl-C")
    .addOption(
      new Option("--max-age <duration>", "how long the oldest ready job may wait")
        .argParser(duration)
        .default(300_000, "5m"),
    )
    .addHelpText(
      "after",
      `
--check exits with 1 if one of these is true:
- jobs are ready and no live worker knows their kind
- a dead worker's jobs wait and no live worker can take them
- a job was quarantined within a day
- the oldest ready job is older than --max-age (paused kinds don't count)
- the store is not ok, or is blocked`,
    )
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<Flags>();
        const engine = await attach();
        let before: Survey | null = null;
        let ok = true;
        const status = async (): Promise<Status> => {
          const now = await survey(engine, Date.now);
          const made = statusOf(now, before, flags.maxAge);
          before = now;
          ok = made.ok;
          return made;
        };
        if (flags.watch === true)
          await watch(terminal, async ({ columns, rows }) => {
            const now = await status();
            return terminal.json ? [jsonText(now)] : statusLines(now, { ...terminal, columns }, rows);
          });
        else {
          const now = await status();
          terminal.answer(now, () => statusLines(now, terminal).join("\n"));
        }
        return flags.check === true && !ok ? ExitCode.failure : ExitCode.ok;
      }),
    );
};

// `outlive workers`: who works, and how they are.

/** Of each worker, so that the answer stays readable; `heldCount` says how many there are. */
const HELD_IDS = 100;

export const workersCommand: Register = (program, run) => {
  program
    .command("workers")
    .description("list the workers: process, state, and what each holds")
    .option("--heartbeat", "heartbeats, leases, loop lag, held jobs and last words instead")
    .option("--all", "also workers that have ended")
    .action(
      run(async ({ terminal, attach }, command) => {
        const flags = command.opts<{ heartbeat?: boolean; all?: boolean }>();
        const engine = await attach();
        const which = flags.all ? "all" : "present";
        const ids = flags.heartbeat ? { heldIds: HELD_IDS } : {};
        const [rows, deaths] = await Promise.all([engine.workers({ which, ...ids }), engine.operator.deaths()]);
        const now = Date.now();
        const workers = rows.map((row) => knownWorker(row, deaths, now));
        terminal.answer({ workers }, () => {
          if (workers.length === 0) return "No worker is alive. Start one: outlive work";
          const lines = flags.heartbeat ? heartbeatLines(workers, terminal) : workerLines(workers, terminal, now);
          return lines.join("\n");
        });
      }),
    );
};

// `outlive metrics`: the metrics of the store once, as Prometheus text. What happened inside the worker processes is served by
// `outlive work --http`.

export const metricsCommand: Register = (program, run) => {
  program
    .command("metrics")
    .description("the store's metrics once, as Prometheus text")
    .action(
      run(async ({ terminal, attach }) => {
        // Loaded here: no other command needs it.
        const [{ promClient }, { attachMetrics }] = await Promise.all([
          import("../../telemetry/metrics.ts"),
          import("../../metrics.ts"),
        ]);
        const registry = new (promClient().Registry)();
        attachMetrics(await attach(), { registry, only: "store", incidentsSince: 0 });
        const text = await registry.metrics();
        terminal.answer(terminal.json ? await registry.getMetricsAsJSON() : null, () => text);
      }),
    );
};

// `status` as text: one screen, calm when all is well, and what to do next at its end. Pure: data and width in, lines out.

/** At most `rows` lines: the tables keep what matters most, and the advice what is most urgent. */
export function statusLines(status: Status, pen: Pen, rows = Number.POSITIVE_INFINITY): string[] {
  const head = [headline(status, pen), ...storeLines(status, pen)];
  const incidents = incidentLines(status, pen, rows < 20 ? 0 : rows < 30 ? 1 : status.incidents.length);
  // Each of the two tables has a blank line and its head above it.
  const room = rows - head.length - incidents.length - 4;
  const leastKinds = Math.min(status.kinds.length, Math.max(3, Math.floor(rows / 5)));
  const leastWorkers = Math.min(status.workers.length, Math.max(2, Math.floor(rows / 8)));
  const advice = adviceLines(status, pen, room - leastKinds - leastWorkers);
  const forKinds = Math.min(Math.max(1, status.kinds.length), room - advice.length - leastWorkers);
  return [
    ...head,
    "",
    ...kindLines(status, pen, forKinds),
    "",
    ...statusWorkerLines(status.workers, pen, room - advice.length - forKinds),
    ...incidents,
    ...advice,
  ];
}

function headline(status: Status, pen: Pen): string {
  const needs = status.advice.filter(({ needsPerson }) => needsPerson).length;
  const running = status.workers.some(works);
  const text =
    needs > 0
      ? pen.style(["bold", "red"], `${count(needs, "thing needs", "things need")} you`)
      : status.advice.length > 0
        ? pen.style(["bold", "yellow"], `${running ? "Running" : "No worker is alive"}; see what to do next`)
        : running
          ? pen.style(["bold", "green"], "All is well")
          : "No worker is alive; no job is ready";
  return `${text}  ${pen.style("dim", stamp(status.at))}`;
}

/** What the store is, and its facts. On a terminal, facts that do not fit go to further lines; only a path that is wider than the screen is cut. */
function storeLines({ store }: Status, pen: Pen): string[] {
  const state = store.ok ? (store.blockedBy ? "blocked" : "ok") : "not ok";
  const label = `store ${state}  `;
  const [what, ...facts] = store.summary;
  const room = pen.isTty ? pen.columns - 1 - label.length : Number.POSITIVE_INFINITY;
  const lines = [cutFront(oneLine(what), room)];
  for (const [at, fact] of facts.entries()) {
    const longer = `${lines.at(-1)}${at === 0 ? "  " : ", "}${fact}`;
    if (longer.length <= room) lines[lines.length - 1] = longer;
    else lines.push(cut(fact, room));
  }
  const health = state === "ok" ? state : pen.style("red", state);
  return lines.map((line, at) =>
    at === 0 ? `store ${health}  ${pen.style("dim", line)}` : `${" ".repeat(label.length)}${pen.style("dim", line)}`,
  );
}

const KIND_COLUMNS: readonly Column[] = [
  { title: "KIND", shrinkTo: 8 },
  { title: "READY", align: "right" },
  { title: "OLDEST", align: "right" },
  { title: "DELAYED", align: "right" },
  { title: "HELD", align: "right" },
  { title: "RUNNING", align: "right" },
  { title: "DONE/S", align: "right" },
  { title: "DONE", align: "right" },
  { title: "FAILING", align: "right" },
  { title: "DEAD", align: "right" },
  { title: "QUARANT.", align: "right" },
];

/** The rate is omitted from a single survey; the held and the failing jobs if there are none. */
function kindLines({ kinds: all, workers }: Status, pen: Pen, room: number): string[] {
  const kinds = all.filter((kind) => !isFormer(kind, workers.some(works)));
  const former = all.length - kinds.length;
  if (kinds.length === 0)
    return [
      pen.style("dim", "The store has no kinds yet: a worker declares its kinds when it starts. Next: outlive work"),
    ];
  const rated = kinds.some(({ perSecond }) => perSecond !== null);
  const held = kinds.some((kind) => kind.held > 0);
  const failing = kinds.some((kind) => kind.failing !== null);
  const kept = (_: unknown, i: number): boolean => {
    const { title } = KIND_COLUMNS[i]!;
    return (rated || title !== "DONE/S") && (held || title !== "HELD") && (failing || title !== "FAILING");
  };
  const shown = most(kinds, Math.max(1, room - (former === 0 ? 0 : 1)), busyness);
  const rows = shown.map((kind): Cell[] => [
    kind.paused ? { text: `${kind.kind} (paused)`, ink: "yellow" } : kind.kind,
    amount(kind.ready, kind.ready > 0 && kind.liveWorkers === 0 && !kind.paused ? "red" : null),
    kind.oldestReadyMs === null ? faint("-") : humanMs(kind.oldestReadyMs),
    amount(kind.delayed),
    amount(kind.held),
    amount(kind.running, "green"),
    kind.perSecond === null || kind.perSecond === 0 ? faint("-") : perSecond(kind.perSecond),
    amount(kind.succeeded),
    amount(kind.failing?.jobs ?? 0, "yellow"),
    amount(kind.dead, "yellow"),
    amount(kind.quarantined, "red"),
  ]);
  return [
    ...grid(
      pen,
      KIND_COLUMNS.filter(kept),
      rows.map((row) => row.filter(kept)),
    ),
    ...rest(kinds.length - shown.length, "kind", pen),
    ...(former === 0
      ? []
      : [
          pen.style(
            "dim",
            `${count(former, "former kind is", "former kinds are")} not shown: nothing of them is left to do`,
          ),
        ]),
  ];
}

/** No live worker knows it any more, and nothing of it needs one or a person. While no worker lives, nothing says which kinds those are. */
function isFormer(kind: KindStatus, isAnyAlive: boolean): boolean {
  const { ready, delayed, held, running, dead, quarantined, paused, liveWorkers } = kind;
  return isAnyAlive && liveWorkers === 0 && !paused && ready + delayed + held + running + dead + quarantined === 0;
}

function busyness({ quarantined, ready, running, dead }: KindStatus): number {
  return quarantined * 1e12 + ready * 1e6 + running * 1e3 + dead;
}

function amount(value: number, ink: Ink | null = null): Cell {
  if (value === 0) return faint("-");
  return ink === null ? thousands(value) : { text: thousands(value), ink };
}

function faint(text: string): Cell {
  return { text, ink: "dim" };
}

function perSecond(value: number): string {
  return value >= 10 ? thousands(Math.round(value)) : value.toFixed(1);
}

const INK_OF_KNOWN: Readonly<Record<Known, Ink>> = {
  live: "green",
  blocked: "yellow",
  silent: "red",
  lost: "red",
  gone: "red",
  recovering: "yellow",
  stopped: "dim",
};

const WORKER_COLUMNS: readonly Column[] = [
  { title: "WORKER", shrinkTo: 16 },
  { title: "PID", align: "right" },
  { title: "STATE" },
  { title: "HELD", align: "right" },
  { title: "HEARTBEAT", align: "right" },
  { title: "LOOP LAG", align: "right" },
];

function statusWorkerLines(workers: readonly KnownWorker[], pen: Pen, room: number): string[] {
  if (workers.length === 0) return [pen.style("dim", "No worker is alive. Start one: outlive work")];
  const shown = most(workers, room, ({ known, heldCount }) => (known === "live" ? 0 : 1e9) + heldCount);
  return [
    ...grid(
      pen,
      WORKER_COLUMNS,
      shown.map((worker) => [
        worker.id,
        worker.pid,
        knownCell(worker.known),
        `${thousands(worker.heldCount)} of ${thousands(worker.concurrency)}`,
        ago(worker.heartbeatAgeMs),
        humanMs(worker.loopLagMs),
      ]),
    ),
    ...rest(workers.length - shown.length, "worker", pen),
  ];
}

function knownCell(known: Known): Cell {
  return { text: known, ink: INK_OF_KNOWN[known] };
}

function incidentLines({ incidents, at }: Status, pen: Pen, most: number): string[] {
  if (incidents.length === 0) return [];
  const rows = incidents
    .slice(0, most)
    .map(({ id, worker, how, detectedAt, completedAt, jobCount }): Cell[] => [
      id,
      ago(at - detectedAt),
      worker,
      how,
      thousands(jobCount),
      completedAt === null ? { text: "not finished", ink: "yellow" } : `in ${humanMs(completedAt - detectedAt)}`,
    ]);
  const columns: readonly Column[] = [
    { title: "INCIDENT" },
    { title: "WHEN", align: "right" },
    { title: "WORKER", shrinkTo: 12 },
    { title: "HOW" },
    { title: "JOBS", align: "right" },
    { title: "RECOVERED", align: "right" },
  ];
  return ["", ...grid(pen, columns, rows)];
}

/** The most urgent that fit, at least one. */
function adviceLines({ advice }: Status, pen: Pen, room: number): string[] {
  if (advice.length === 0) return [];
  const width = pen.isTty ? pen.columns - 3 : Number.POSITIVE_INFINITY;
  const lines = ["", pen.style("dim", "WHAT TO DO NEXT")];
  for (const [i, { needsPerson, text, next }] of advice.entries()) {
    const mark = needsPerson ? pen.style("red", "!") : pen.style("yellow", "-");
    const item = [
      ...wrap(oneLine(text), width).map((line, n) => `${n === 0 ? mark : " "} ${cut(line, width)}`),
      ...wrap(oneLine(next), width).map((line) => `  ${pen.style("cyan", cut(line, width))}`),
    ];
    const last = i === advice.length - 1;
    if (i > 0 && lines.length + item.length + (last ? 0 : 1) > room)
      return [...lines, ...rest(advice.length - i, "more", pen)];
    lines.push(...item);
  }
  return lines;
}

/** The `room` most important ones, in their own order. */
function most<T>(all: readonly T[], room: number, weight: (one: T) => number): readonly T[] {
  if (all.length <= room) return all;
  const kept = new Set(all.toSorted((a, b) => weight(b) - weight(a)).slice(0, Math.max(1, room - 1)));
  return all.filter((one) => kept.has(one));
}

function rest(left: number, what: string, pen: Pen): string[] {
  return left > 0 ? [pen.style("dim", `… and ${what === "more" ? `${left} more` : count(left, `more ${what}`)}`)] : [];
}

// Workers as a table: who they are and what they hold, or how their heartbeats are. Pure.

function workerLines(workers: readonly KnownWorker[], pen: Pen, now: number): string[] {
  return grid(
    pen,
    [
      { title: "WORKER", shrinkTo: 16 },
      { title: "PID", align: "right" },
      { title: "STATE" },
      { title: "HELD", align: "right" },
      { title: "HEARTBEAT", align: "right" },
      { title: "STARTED", align: "right" },
      { title: "VERSION" },
      { title: "KINDS", shrinkTo: 8 },
    ],
    workers.map((worker) => [
      worker.id,
      worker.pid,
      knownCell(worker.known),
      held(worker),
      ago(worker.heartbeatAgeMs),
      ago(now - worker.startedAt),
      worker.version,
      worker.kinds.join(", "),
    ]),
  );
}

const JOBS_SHOWN = 5;

function heartbeatLines(workers: readonly KnownWorker[], pen: Pen): string[] {
  return grid(
    pen,
    [
      { title: "WORKER", shrinkTo: 16 },
      { title: "STATE" },
      { title: "HEARTBEAT", align: "right" },
      { title: "LEASE", align: "right" },
      { title: "BEATS", align: "right" },
      { title: "LOOP LAG", align: "right" },
      { title: "HELD", align: "right" },
      { title: "JOBS", shrinkTo: 8 },
      { title: "LAST WORD", shrinkTo: 9 },
    ],
    workers.map((worker) => [
      worker.id,
      knownCell(worker.known),
      ago(worker.heartbeatAgeMs),
      humanMs(worker.leaseMs),
      thousands(worker.beats),
      humanMs(worker.loopLagMs),
      held(worker),
      heldJobs(worker),
      oneLine(worker.lastWord ?? "", 120),
    ]),
  );
}

/** The first few of what it holds. */
function heldJobs({ heldIds = [], heldCount }: KnownWorker): string {
  const shown = heldIds.slice(0, JOBS_SHOWN);
  const more = heldCount - shown.length;
  return shown.length === 0 ? "-" : `${shown.join(", ")}${more > 0 ? ` and ${thousands(more)} more` : ""}`;
}

function held({ heldCount, concurrency }: KnownWorker): string {
  return `${thousands(heldCount)} of ${thousands(concurrency)}`;
}
