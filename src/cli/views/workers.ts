// Workers as a table: who they are and what they hold, or how their heartbeats are. Pure.
import { humanMs } from "../../core/duration.ts";
import { grid, type Pen } from "../grid.ts";
import type { KnownWorker } from "../known-worker.ts";
import { ago, oneLine, thousands } from "../words.ts";
import { knownCell } from "./status.ts";

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
      oneLine(worker.lastWord ?? "", 120),
    ]),
  );
}

function held({ heldCount, concurrency }: KnownWorker): string {
  return `${thousands(heldCount)} of ${thousands(concurrency)}`;
}
