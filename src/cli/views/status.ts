// `status` as text: one screen, calm when all is well, and what to do next at its end. Pure: data and width in, lines out.
import { humanMs } from "../../job/time.ts";
import { type Cell, type Column, grid, type Ink, type Pen } from "../grid.ts";
import type { Known, KnownWorker } from "../lookup.ts";
import type { KindStatus, Status } from "../survey.ts";
import { ago, bytes, count, cut, oneLine, stamp, thousands } from "../words.ts";

/** At most `rows` lines: the tables keep what matters most, and the advice what is most urgent. */
export function statusLines(status: Status, pen: Pen, rows = Number.POSITIVE_INFINITY): string[] {
  const head = [headline(status, pen), storeLine(status, pen)];
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
  const said =
    needs > 0
      ? pen.style(["bold", "red"], `${count(needs, "thing needs", "things need")} you`)
      : status.advice.length > 0
        ? pen.style(["bold", "yellow"], "Running; see what to do next")
        : pen.style(["bold", "green"], "All is well");
  return `${said}  ${pen.style("dim", stamp(status.at))}`;
}

function storeLine({ store }: Status, pen: Pen): string {
  const { path, bytes: size, durability, journalMode } = store.detail;
  const health = store.ok ? (store.blockedBy ? pen.style("red", "blocked") : "ok") : pen.style("red", "not ok");
  const facts = [
    ...(typeof size === "number" ? [bytes(size)] : []),
    ...(durability === undefined ? [] : [`durability ${String(durability)}`]),
    ...(journalMode === undefined ? [] : [`journal ${String(journalMode)}`]),
  ].join(", ");
  const where = oneLine(String(path ?? ""), pen.isTty ? Math.max(10, pen.columns - facts.length - 20) : undefined);
  return `store ${health}  ${pen.style("dim", `${where}  ${facts}`)}`;
}

const KIND_COLUMNS: readonly Column[] = [
  { title: "KIND", shrinkTo: 12 },
  { title: "READY", align: "right" },
  { title: "OLDEST", align: "right" },
  { title: "DELAYED", align: "right" },
  { title: "RUNNING", align: "right" },
  { title: "DONE/S", align: "right" },
  { title: "DEAD", align: "right" },
  { title: "QUARANT.", align: "right" },
];

/** The rate is left out of a single look. */
function kindLines({ kinds }: Status, pen: Pen, room: number): string[] {
  if (kinds.length === 0)
    return [pen.style("dim", "No kind is in the store yet: a worker declares its own. outlive work")];
  const rated = kinds.some(({ perSecond }) => perSecond !== null);
  const kept = (_: unknown, i: number): boolean => rated || KIND_COLUMNS[i]!.title !== "DONE/S";
  const shown = most(kinds, room, busyness);
  const rows = shown.map((kind): Cell[] => [
    kind.paused ? { text: `${kind.kind} (paused)`, ink: "yellow" } : kind.kind,
    amount(kind.ready, kind.ready > 0 && kind.liveWorkers === 0 && !kind.paused ? "red" : null),
    kind.oldestReadyMs === null ? faint("-") : humanMs(kind.oldestReadyMs),
    amount(kind.delayed),
    amount(kind.running, "green"),
    kind.perSecond === null || kind.perSecond === 0 ? faint("-") : perSecond(kind.perSecond),
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
  ];
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

export function knownCell(known: Known): Cell {
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
      ...wrap(oneLine(text), width).map((line, n) => `${n === 0 ? mark : " "} ${line}`),
      ...wrap(oneLine(next), width).map((line) => `  ${pen.style("cyan", line)}`),
    ];
    const last = i === advice.length - 1;
    if (i > 0 && lines.length + item.length + (last ? 0 : 1) > room)
      return [...lines, ...rest(advice.length - i, "more", pen)];
    lines.push(...item);
  }
  return lines;
}

/** Broken at spaces, so that a command is cut nowhere. */
function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && line.length + 1 + word.length > width) {
      lines.push(line);
      line = word;
    } else line = line === "" ? word : `${line} ${word}`;
  }
  return [...lines, line].map((one) => cut(one, width));
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

export function workerLines(workers: readonly KnownWorker[], pen: Pen, now: number): string[] {
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

export function heartbeatLines(workers: readonly KnownWorker[], pen: Pen): string[] {
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
