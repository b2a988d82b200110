// Drafts into the store: calls that come together are one script, and one that is too large for a script is staged (lua/staged.ts).
import { isUnknownKind } from "../../job/errors.ts";
import type { Enqueued, JobDraft } from "../../job/job.ts";
import type { Lease } from "../../job/lease.ts";
import type { WriteAnswer } from "../port.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { assertDeclared, draftsArgs, leaseArgs, stagedArgs, writeAnswer } from "./encoding.ts";
import type { Resendable } from "./journal.ts";

/**
 * What one script inserts: 250 jobs take 4.5 ms of the server, 1,000 took 19. One with keys costs as much as four, and one of another kind than the job before it as much as two: 250 jobs
 * of as many kinds took 12 ms. Calls are put together up to this cost, and one that costs more on its own is staged (lua/staged.ts).
 */
export const MAX_COST = 250;
export function costOf(drafts: readonly JobDraft[]): number {
  let cost = 0;
  let before = drafts[0]?.kind;
  for (const { kind, keys = [] } of drafts) {
    if (kind !== before) cost++;
    before = kind;
    cost += keys.length > 0 ? KEYED_COST : 1;
  }
  return cost;
}
const KEYED_COST = 4;
/** Full scripts under way at once: the next one is encoded and sent while the server carries out the one before. */
export const AT_ONCE = 2;

interface WaitingCall {
  readonly drafts: readonly JobDraft[];
  readonly cost: number;
  /** What it is a batch of. */
  readonly of: object | undefined;
  readonly resolve: (enqueued: readonly Enqueued[]) => void;
  readonly reject: (thrown: unknown) => void;
}

/** Enqueues that come while others are under way become one script: each call is still carried out whole or not at all, and in the order of the calls. */
export class Enqueuing {
  readonly #connection: Connection;
  #waiting: WaitingCall[] = [];
  #underWay = 0;
  /** What a batch of which was not stored, and why: those that come after it are not either. */
  readonly #failed = new WeakMap<object, unknown>();
  #starts = false;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  enqueue(drafts: readonly JobDraft[], of?: object): Promise<readonly Enqueued[]> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ drafts, cost: costOf(drafts), of, resolve, reject });
      if (!this.#starts && this.#mayStart()) void this.#start();
    });
  }

  /** A second script is sent only if it is full: what comes meanwhile makes it a larger one. */
  #mayStart(): boolean {
    if (this.#underWay === 0) return this.#waiting.length > 0;
    return this.#underWay < AT_ONCE && this.#waiting.reduce((sum, { cost }) => sum + cost, 0) >= MAX_COST;
  }

  async #start(): Promise<void> {
    this.#starts = true;
    // What is asked for in the same turn of the event loop goes along.
    await Promise.resolve();
    this.#starts = false;
    while (this.#mayStart()) {
      this.#underWay++;
      void this.#together(this.#next()).finally(() => {
        this.#underWay--;
        if (!this.#starts) void this.#start();
      });
    }
  }

  #next(): readonly WaitingCall[] {
    let sum = 0;
    let calls = 0;
    for (const { cost } of this.#waiting) {
      if (calls > 0 && sum + cost > MAX_COST) break;
      sum += cost;
      calls++;
    }
    return this.#waiting.splice(0, calls);
  }

  async #together(all: readonly WaitingCall[]): Promise<void> {
    const failed = all.filter(({ of }) => of !== undefined && this.#failed.has(of));
    for (const { of, reject } of failed) reject(this.#failed.get(of!));
    const calls = all.filter((call) => !failed.includes(call));
    if (calls.length === 0) return;
    try {
      const [first] = calls;
      const drafts = calls.flatMap((call) => call.drafts);
      const insertAll = calls.length === 1 && first!.cost > MAX_COST ? insertStaged : insert;
      const enqueued = [...(await insertAll(this.#connection, drafts))];
      for (const call of calls) call.resolve(enqueued.splice(0, call.drafts.length));
    } catch (thrown) {
      // Nothing was written. A kind that only one of them names must not fail the others.
      if (calls.length > 1 && isUnknownKind(thrown)) for (const call of calls) await this.#together([call]);
      else
        for (const { of, reject } of calls) {
          if (of) this.#failed.set(of, thrown);
          reject(thrown);
        }
    }
  }
}

/** It has nothing but its record and its input. */
function isPlainDraft({ runAt, delayMs, dedupeKey, dedupe, keys = [], expiresMs }: JobDraft): boolean {
  const isDue = runAt === null && delayMs === 0;
  return isDue && dedupeKey === null && dedupe === undefined && keys.length === 0 && expiresMs === undefined;
}

async function insert(connection: Connection, drafts: readonly JobDraft[]): Promise<readonly Enqueued[]> {
  const args = draftsArgs(drafts);
  const script = drafts.every(isPlainDraft) ? "enqueuePlain" : "enqueue";
  const reply = await connection.eval(script, args, [{ script: "enqueue", args }]);
  assertDeclared(reply);
  return enqueuedOf(reply, drafts);
}

/** Killed before it is decided, nothing of it is enqueued; afterwards all of it is. */
async function insertStaged(connection: Connection, drafts: readonly JobDraft[]): Promise<readonly Enqueued[]> {
  const token = await staged(connection, drafts);
  if ((await connection.eval("decideStaged", [token, String(drafts.length)])) === 0) throw stagedGone();
  const script = drafts.every(isPlainDraft) ? "insertPlainStaged" : "insertStaged";
  return insertDecided(connection, script, token, drafts);
}

/** Children of an attempt, more than one script inserts: decided under its lease, as a whole. */
export async function insertChildren(
  connection: Connection,
  lease: Lease,
  drafts: readonly JobDraft[],
  tried: string,
): Promise<WriteAnswer> {
  const token = await staged(connection, drafts);
  const args = [token, String(drafts.length), ...leaseArgs(lease), tried];
  const refused = (await connection.eval("decideChildren", args)) as Reply[];
  if (refused[0] === "gone") throw stagedGone();
  if (refused.length > 0) {
    await connection.eval("forgetStaged", [token]).catch(() => {});
    return writeAnswer(refused, lease, tried);
  }
  return { is: "applied", enqueued: await insertDecided(connection, "insertChildren", token, drafts) };
}

async function staged(connection: Connection, drafts: readonly JobDraft[]): Promise<string> {
  const token = connection.newToken();
  try {
    for (let from = 0; from < drafts.length; from += MAX_COST) {
      const piece = drafts.slice(from, from + MAX_COST);
      assertDeclared(await connection.eval("stage", [token, ...stagedArgs(piece)]));
    }
  } catch (thrown) {
    // Otherwise the retention does it.
    await connection.eval("forgetStaged", [token]).catch(() => {});
    throw thrown;
  }
  return token;
}

async function insertDecided(
  connection: Connection,
  script: "insertStaged" | "insertPlainStaged" | "insertChildren",
  token: string,
  drafts: readonly JobDraft[],
): Promise<readonly Enqueued[]> {
  // 250 jobs with a time took 6 to 8 ms.
  const costOfEach = Math.max(script === "insertPlainStaged" ? 1 : 2, costOf(drafts) / drafts.length);
  const perPiece = String(Math.ceil(MAX_COST / costOfEach));
  const became: string[] = [];
  while (became.length < drafts.length) {
    const args = [token, String(became.length), perPiece];
    const more = (await connection.eval(script, args)) as string[];
    if (more.length === 0) throw stagedGone();
    became.push(...more);
  }
  // The last operation of the call: if any of it is lost, this one is.
  const again: Resendable[] = [];
  // Children are enqueued again by the next attempt of their parent.
  for (let from = 0; from < drafts.length && script !== "insertChildren"; from += MAX_COST)
    again.push({ script: "enqueue", args: draftsArgs(drafts.slice(from, from + MAX_COST)) });
  await connection.eval("forgetStaged", [token], again);
  return enqueuedOf(became, drafts);
}

function stagedGone(): Error {
  return new Error("what was staged is gone: the store was replaced, or went back to an earlier state");
}

/** As `D.enqueue` (lua/changes.ts) says what became of each draft. */
export function enqueuedOf(reply: Reply, drafts: readonly JobDraft[]): Enqueued[] {
  return (reply as string[]).map((became, at) => {
    if (became === "1" || became === "0") return { id: drafts[at]!.id, created: became === "1" };
    const holder = { id: became.slice(1), created: false };
    return became[0] === "k" ? holder : { ...holder, became: became[0] === "p" ? "replaced" : "rerun" };
  });
}
