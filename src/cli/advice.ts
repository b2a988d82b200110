// What to do next: everything that is wrong or unusual, the worst first, each with the command that helps. Pure.
import { humanMs } from "../core/duration.ts";
import { type KnownWorker, works } from "./known-worker.ts";
import type { KindStatus, Look } from "./survey.ts";
import { count, shellWord } from "./words.ts";

export interface Advice {
  /** Stable, for programs. */
  readonly code:
    | "store-not-ok"
    | "store-blocked"
    | "no-worker"
    | "stranded"
    | "too-old"
    | "quarantined"
    | "worker-gone"
    | "worker-silent"
    | "worker-blocked"
    | "dead"
    | "paused";
  /** Sets the exit code of `status --check`. */
  readonly needsPerson: boolean;
  readonly kind: string | null;
  readonly worker: string | null;
  /** For people. */
  readonly text: string;
  /** A command, or a sentence if none helps. */
  readonly next: string;
}

const DAY_MS = 86_400_000;

type Surveyed = Omit<Look, "kinds"> & { readonly kinds: readonly KindStatus[] };

export function advise(look: Surveyed, maxAgeMs: number): Advice[] {
  const advice = [
    ...ofStore(look.store),
    ...look.kinds.flatMap((kind) => ofReady(kind, maxAgeMs)),
    ...ofQuarantine(look),
    ...look.workers.flatMap((worker) => ofWorker(worker, look.workers.some(works))),
    ...look.kinds.flatMap(ofDead),
    ...look.kinds.flatMap(ofPaused),
  ];
  return [...advice.filter(({ needsPerson }) => needsPerson), ...advice.filter(({ needsPerson }) => !needsPerson)];
}

type Said = Pick<Advice, "code" | "text" | "next"> & Partial<Advice>;
const say = (said: Said): Advice => ({ needsPerson: false, kind: null, worker: null, ...said });

function ofStore(store: Look["store"]): Advice[] {
  if (!store.ok)
    return [
      say({
        code: "store-not-ok",
        needsPerson: true,
        text: "The store says that it is not well.",
        next: "outlive check --integrity",
      }),
    ];
  if (!store.blockedBy) return [];
  const { pid, command } = store.blockedBy;
  return [
    say({
      code: "store-blocked",
      needsPerson: true,
      text: `Process ${pid} (${command || "unknown command"}) holds the store's write lock and does not let go.`,
      next: `Look at process ${pid}; if it is frozen, end it: nothing is lost.`,
    }),
  ];
}

/** A paused kind waits because somebody wanted it to. */
function ofReady(kind: KindStatus, maxAgeMs: number): Advice[] {
  const { kind: name, ready, oldestReadyMs } = kind;
  if (ready === 0 || kind.paused) return [];
  if (kind.liveWorkers === 0)
    return [
      say({
        code: "no-worker",
        needsPerson: true,
        kind: name,
        text: `${count(ready, "job")} of ${name} ${ready === 1 ? "is" : "are"} ready, and no live worker knows that kind.`,
        next: "outlive work",
      }),
    ];
  if (oldestReadyMs === null || oldestReadyMs <= maxAgeMs) return [];
  return [
    say({
      code: "too-old",
      needsPerson: true,
      kind: name,
      text: `The oldest ready job of ${name} has waited for ${humanMs(oldestReadyMs)}; ${count(ready, "is", "are")} ready.`,
      next: "Start more workers (outlive work), or raise their concurrency.",
    }),
  ];
}

function ofQuarantine({ kinds, at, lastQuarantinedAt }: Surveyed): Advice[] {
  const total = kinds.reduce((sum, { quarantined }) => sum + quarantined, 0);
  if (total === 0) return [];
  const age = lastQuarantinedAt === null ? null : Math.max(0, at - lastQuarantinedAt);
  return [
    say({
      code: "quarantined",
      needsPerson: age !== null && age < DAY_MS,
      text: `${count(total, "job is", "jobs are")} quarantined for killing ${total === 1 ? "its worker" : "their workers"}${age === null ? "" : `, the latest ${humanMs(age)} ago`}.`,
      next: "outlive quarantine list",
    }),
  ];
}

/** A dead worker's jobs are taken by any live one; without a live one they wait for a person. */
function ofWorker(worker: KnownWorker, anyLive: boolean): Advice[] {
  const { id, pid, known, heldCount, heartbeatAgeMs, leaseMs, loopLagMs } = worker;
  const held = count(heldCount, "job");
  if (known === "gone" || known === "silent" || known === "stopped") {
    const how =
      known === "silent"
        ? `has been silent for ${humanMs(heartbeatAgeMs)} (its lease is ${humanMs(leaseMs)})`
        : `is ${known}`;
    const stranded = heldCount > 0 && !anyLive;
    return [
      say({
        code: stranded ? "stranded" : known === "silent" ? "worker-silent" : "worker-gone",
        needsPerson: stranded,
        worker: id,
        text: `Worker ${id} (pid ${pid}) ${how} and holds ${held}${stranded ? "; no live worker can take them" : ""}.`,
        next: `${known === "silent" ? "outlive recover --wait" : "outlive recover"}${stranded ? ", then: outlive work" : ""}`,
      }),
    ];
  }
  if (known !== "blocked") return [];
  return [
    say({
      code: "worker-blocked",
      worker: id,
      text: `The main loop of worker ${id} (pid ${pid}) has stood still for ${humanMs(loopLagMs)}; it holds ${held}.`,
      next: "outlive jobs --state running",
    }),
  ];
}

function ofDead({ kind, dead }: KindStatus): Advice[] {
  if (dead === 0) return [];
  return [
    say({
      code: "dead",
      kind,
      text: `${count(dead, "job")} of ${kind} ${dead === 1 ? "is" : "are"} dead.`,
      next: `outlive jobs --state dead --kind ${shellWord(kind)}, then: outlive retry --state dead --kind ${shellWord(kind)}`,
    }),
  ];
}

function ofPaused({ kind, paused, ready }: KindStatus): Advice[] {
  if (!paused) return [];
  return [
    say({
      code: "paused",
      kind,
      text: `The kind ${kind} is paused; ${count(ready, "job waits", "jobs wait")}.`,
      next: `outlive resume ${shellWord(kind)}`,
    }),
  ];
}
