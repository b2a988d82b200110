// Hears what the store answered to whom, next to the wire: the answers of the present event for the laws, the ambiguous ones
// for the tally, and the story.
import type { Enqueued, JobDraft } from "../../../src/job/job.ts";
import type { Lease } from "../../../src/job/lease.ts";
import type { Verb } from "../../../src/stores/observed.ts";
import type {
  Batches,
  CancelOptions,
  FencedWrite,
  OperatorAnswer,
  TurnAnswer,
  Settlement,
  Signal,
  SignalAnswer,
  Store,
  Taken,
  Transactions,
  Verdict,
  WriteAnswer,
} from "../../../src/stores/port.ts";
import type { SimProcess } from "../world/process.ts";
import type { Story } from "../world/story.ts";
import type { Tally } from "./tally.ts";

export interface Call {
  readonly process: SimProcess;
  readonly method: Verb;
  readonly args: readonly unknown[];
}

/** One answer of the store, as soon as it was applied; `lost`: it never arrives. */
export type Answer = { readonly process: SimProcess; readonly lost: boolean } & (
  | { readonly of: "enqueue"; readonly drafts: readonly JobDraft[]; readonly enqueued: readonly Enqueued[] }
  | {
      readonly of: "turn";
      readonly worker: string;
      readonly settlements: readonly Settlement[];
      readonly asked: number;
      readonly ahead: number;
      readonly answer: TurnAnswer;
    }
  | { readonly of: "commit"; readonly settlement: Settlement; readonly answer: WriteAnswer }
  | {
      readonly of: "write";
      readonly writes: readonly FencedWrite[];
      readonly answers: readonly WriteAnswer[];
    }
  | { readonly of: "takeBack"; readonly verdicts: readonly Verdict[] }
  | { readonly of: "seal"; readonly batch: string }
  /** Jobs that the store itself enqueues for a batch: blocks, what follows an end, the beginning of a round. */
  | { readonly of: "ofBatch"; readonly drafts: readonly JobDraft[] }
  | { readonly of: "signal"; readonly signal: Signal; readonly answer: SignalAnswer }
  | {
      readonly of: "cancel" | "retry";
      readonly job: string;
      readonly answer: OperatorAnswer;
      readonly children: boolean;
    }
  /** An earlier answer with these claims in it never arrived. */
  | { readonly of: "lost"; readonly claimed: TurnAnswer["claimed"] }
);

/** Losing the answer of a read or of a heartbeat leaves nothing in doubt. */
export const MATTERS: ReadonlySet<Verb> = new Set([
  "enqueue",
  "register",
  "turn",
  "transactions.commit",
  "write",
  "condemn",
  "takeBack",
  "batches.append",
  "batches.seal",
  "batches.abort",
  "batches.finish",
  "batches.reopen",
  "operate.change",
  "operate.cancel",
  "operate.retry",
  "operate.signal",
]);
const QUIET: ReadonlySet<Verb> = new Set([
  "workers",
  "beat",
  "heldBy",
  "purge",
  "declare",
  "losses.open",
  "losses.jobs",
  "upkeep.tend",
  "batches.get",
  "batches.fold",
  "batches.tend",
]);

export class Witness {
  readonly #story: Story;
  readonly #tally: Tally;
  #answers: Answer[] = [];

  constructor(story: Story, tally: Tally) {
    this.#story = story;
    this.#tally = tally;
  }

  /** The answers since the last call. */
  take(): readonly Answer[] {
    if (this.#answers.length === 0) return this.#answers;
    const answers = this.#answers;
    this.#answers = [];
    return answers;
  }

  asked(process: SimProcess, method: Verb, args: readonly unknown[]): Call {
    return { process, method, args };
  }

  requestLost(process: SimProcess, method: Verb): void {
    this.#story.tell(process.name, `${method}: REQUEST LOST`);
  }

  answered(call: Call, value: unknown, lost: boolean): void {
    const { process, method } = call;
    const answer = understand(call, value, lost);
    if (answer) this.#answers.push(answer);
    if (lost && MATTERS.has(method)) this.#tally.ambiguous++;
    const what = QUIET.has(method) ? method : tell(call, value);
    if (lost) this.#story.tell(process.name, `${what}; ANSWER LOST`);
    else if (what !== null && !QUIET.has(method)) this.#story.tell(process.name, what);
  }

  /** It was applied and answered, and the answer got lost later. */
  answerLost({ process, method }: Call, value: unknown): void {
    if (MATTERS.has(method)) this.#tally.ambiguous++;
    if (method === "turn")
      this.#answers.push({ process, lost: true, of: "lost", claimed: (value as TurnAnswer).claimed });
    this.#story.tell(process.name, `${method}: ANSWER LOST with the restart`);
  }

  failed({ process, method }: Call, thrown: unknown): void {
    this.#story.tell(process.name, `${method}: ${thrown instanceof Error ? thrown.message : String(thrown)}`);
  }
}

function understand({ process, method, args }: Call, value: unknown, lost: boolean): Answer | null {
  switch (method) {
    case "enqueue": {
      const [drafts] = args as Parameters<Store["enqueue"]>;
      return { process, lost, of: method, drafts, enqueued: value as readonly Enqueued[] };
    }
    case "turn": {
      const [worker, settlements, room] = args as Parameters<Store["turn"]>;
      return {
        process,
        lost,
        of: method,
        worker,
        settlements,
        asked: room.total,
        ahead: room.ahead ?? 0,
        answer: value as TurnAnswer,
      };
    }
    case "transactions.commit": {
      const [settlement] = args as Parameters<Transactions["commit"]>;
      return { process, lost, of: "commit", settlement, answer: (value as { answer: WriteAnswer }).answer };
    }
    case "write": {
      const [writes] = args as Parameters<Store["write"]>;
      return { process, lost, of: method, writes, answers: value as readonly WriteAnswer[] };
    }
    case "takeBack": {
      const [{ verdicts }] = args as Parameters<Store["takeBack"]>;
      return { process, lost, of: method, verdicts };
    }
    case "operate.cancel":
    case "operate.retry": {
      const of = method === "operate.cancel" ? "cancel" : "retry";
      const { children = false } = (args[2] ?? {}) as CancelOptions;
      return { process, lost, of, job: args[0] as string, answer: value as OperatorAnswer, children };
    }
    case "operate.change": {
      const [[job], change] = args as Parameters<Store["operate"]["change"]>;
      const [answer] = (value ?? []) as readonly OperatorAnswer[];
      const children = change.do === "cancel" && (change.children ?? false);
      // The person of a history changes one job at a time.
      const of = change.do === "cancel" ? "cancel" : "retry";
      return { process, lost, of, job: job!, answer: answer!, children };
    }
    case "batches.seal":
      return { process, lost, of: "seal", batch: args[0] as string };
    case "batches.append": {
      const [, , blocks] = args as Parameters<Batches["append"]>;
      return { process, lost, of: "ofBatch", drafts: blocks.flatMap(({ job }) => job ?? []) };
    }
    case "batches.finish":
      return { process, lost, of: "ofBatch", drafts: (args as Parameters<Batches["finish"]>)[0].follow };
    case "batches.reopen":
      return { process, lost, of: "ofBatch", drafts: [(args as Parameters<Batches["reopen"]>)[2]] };
    case "operate.signal":
      return { process, lost, of: "signal", signal: args[0] as Signal, answer: value as SignalAnswer };
    default:
      return null;
  }
}

/** Null: nothing happened that is worth telling. */
function tell({ method, args }: Call, value: unknown): string | null {
  switch (method) {
    case "enqueue":
      return `enqueue ${(value as Enqueued[]).map(({ id, created }) => (created ? id : `${id} (known)`)).join(", ")}`;
    case "turn": {
      const [worker, settlements, room] = args as Parameters<Store["turn"]>;
      const { settled, claimed, live } = value as TurnAnswer;
      const ends = settlements.map(({ lease, change }, i) => `${change.name} ${at(lease)} ${settled[i]?.is ?? "?"}`);
      const starts = claimed.map(
        ({ lease, together }) => `claim ${at(lease)}${together === null ? "" : ` with ${together}`}`,
      );
      const turn = [...ends, ...starts].join("; ");
      if (turn === "" && live) return null;
      return `turn of ${worker}${live ? "" : " (not live)"}, room ${room.total}: ${turn || "nothing"}`;
    }
    case "transactions.commit": {
      const [{ lease }] = args as Parameters<Transactions["commit"]>;
      return `commit ${at(lease)} ${(value as { answer: WriteAnswer }).answer.is}`;
    }
    case "write": {
      const [writes] = args as Parameters<Store["write"]>;
      const answers = value as readonly WriteAnswer[];
      return writes
        .map(({ lease, write }, i) => {
          const name = write.type === "step" || write.type === "signal" ? `${write.type} ${write.name}` : write.type;
          return `${name} of ${at(lease)} ${answers[i]?.is ?? "?"}`;
        })
        .join("; ");
    }
    case "operate.cancel":
    case "operate.retry": {
      const { children = false } = (args[2] ?? {}) as CancelOptions;
      return `${method} ${String(args[0])}${children ? " with its children" : ""}: ${(value as OperatorAnswer).is}`;
    }
    case "operate.change": {
      const [ids, change] = args as Parameters<Store["operate"]["change"]>;
      const families = change.do === "cancel" && change.children ? " with its children" : "";
      return `${change.do} ${ids.join(", ")}${families}: ${(value as readonly OperatorAnswer[]).map(({ is }) => is).join(", ")}`;
    }
    case "operate.signal":
      return `signal ${(args[0] as Signal).id}: ${(value as SignalAnswer).is}`;
    case "condemn": {
      const [{ worker, death }] = args as Parameters<Store["condemn"]>;
      return `condemn ${worker.id} (${death.how})${value === null ? ": not dead" : ""}`;
    }
    case "takeBack": {
      const [{ verdicts, of }] = args as Parameters<Store["takeBack"]>;
      const { taken } = value as Awaited<ReturnType<Store["takeBack"]>>;
      const decisions = verdicts.map(({ job, decision }, i) => `${decision} ${job.id}#${job.fence} ${said(taken[i]!)}`);
      return `take back from ${of?.worker ?? "the overdue"}: ${decisions.join("; ") || "held nothing"}`;
    }
    case "register":
      return `register ${(args[0] as { id: string }).id}`;
    case "leave":
      return `leave ${String(args[0])}: ${String(value)}`;
    case "batches.append":
    case "batches.seal":
    case "batches.abort":
    case "batches.reopen":
      return `${method} ${String(args[0])}: ${JSON.stringify(value)}`;
    case "batches.finish":
      return `${method} ${(args as Parameters<Batches["finish"]>)[0].batch}: ${String(value)}`;
    default:
      return method;
  }
}

function at(lease: Lease): string {
  return `${lease.jobId}#${lease.fence}`;
}

function said(taken: Taken): string {
  return typeof taken === "object" ? taken.refused : taken;
}
