// Worker rows: registering, beating, leaving, listing, and what is written about a worker's end.
import { withLastWord } from "../../recovery/incident.ts";
import { type HeldSummary, leaseHash } from "../../job/lease.ts";
import { release } from "../../job/transitions.ts";
import type { WorkerRecord, WorkerRow } from "../liveness.ts";
import type { Beat, BeatAnswer, HeldLease, WorkerQuery } from "../port.ts";
import { longestOverdue } from "../rows.ts";
import { type Connection, SCHEMA_VERSION } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { countersOf, fieldsOf, workerRow } from "./encoding.ts";
import { heldJobs, takeAway, TAKEN_AT_ONCE } from "./recover.ts";

export async function register(connection: Connection, worker: WorkerRecord): Promise<{ epoch: number; now: number }> {
  const { id, predecessor, lock } = worker;
  const args = [id, JSON.stringify(worker), lock.identity ?? "", predecessor ?? ""];
  const [epoch, now] = (await connection.eval("register", args)) as [string, string];
  if (epoch === "!known") throw new Error(`Worker ${id} has registered before.`);
  if (predecessor !== null) await releaseFormer(connection, predecessor);
  return { epoch: Number(epoch), now: Number(now) };
}

/**
 * The server started again, and with it all workers of its former run were not live any more. One that names its predecessor has let go of what that
 * held: no process died, and it costs the jobs nothing.
 */
async function releaseFormer(connection: Connection, id: string): Promise<void> {
  while ((await connection.eval("former", [id])) === 1) {
    const { jobs, more } = await heldJobs(connection, id, 0, TAKEN_AT_ONCE);
    await takeAway(
      connection,
      jobs.map((job) => ({ job, change: release(job, "the server started again, and its worker registered again") })),
    );
    if (more) continue;
    await connection.eval("endFormer", [id]);
  }
}

export async function beat(connection: Connection, id: string, said: Beat): Promise<BeatAnswer> {
  const { loopLagMs, confirmed, lastWord, leases = false } = said;
  const reply = await connection.eval("beat", [id, String(loopLagMs), leases ? "1" : ""]);
  if (lastWord !== undefined) await noteDeath(connection, id, lastWord);
  const [live, replaced, count, digest, late, now] = reply as unknown as [
    number,
    string,
    number,
    string,
    LateReply[],
    string,
  ];
  const list = digest === "" ? await heldLeases(connection, id, count, late) : undefined;
  const expiries = late.map(([job, at, allowed]) => ({
    id: job,
    expires_at: Number(at),
    allowed_ms: Number(allowed),
  }));
  const overdue = longestOverdue(expiries, Number(now), confirmed);
  return {
    live: live === 1,
    ...(replaced !== "" && { replaced }),
    now: Number(now),
    held: list ? summaryOf(list) : { count, digest: Number(digest) },
    ...(list && { leases: list }),
    overdueMs: overdue?.overdueMs ?? null,
    overdueJobId: overdue?.id ?? null,
    schemaVersion: SCHEMA_VERSION,
  };
}

/** What one script lists: of 5,000 jobs it took 23 ms. */
const LISTED_AT_ONCE = 500;

/** In pieces: a job that is claimed or ends meanwhile may be among them or not. Adds to `late` what is overdue. */
async function heldLeases(
  connection: Connection,
  id: string,
  count: number,
  late: LateReply[],
): Promise<readonly HeldLease[]> {
  const leases: HeldLease[] = [];
  const pieces = Math.max(1, Math.ceil(count / LISTED_AT_ONCE));
  for (let piece = 0; piece < pieces; piece++) {
    const reply = await connection.eval("heldLeases", [id, String(piece), String(pieces)]);
    const [list, more] = reply as unknown as [LeaseReply[], LateReply[]];
    for (const one of list) leases.push(heldLease(one, id));
    late.push(...more);
  }
  return leases;
}

function summaryOf(list: readonly HeldLease[]): HeldSummary {
  return { count: list.length, digest: list.reduce((sum, { lease }) => sum + leaseHash(lease), 0) };
}

type LateReply = readonly [job: string, expiresAt: string, allowedMs: string];
type LeaseReply = readonly [row: string, id: string, kind: string, epoch: string, fence: string, d: readonly string[]];

function heldLease([row, jobId, kind, epoch, fence, d]: LeaseReply, worker: string): HeldLease {
  const lease = { kind, jobId, row: Number(row), worker, epoch: Number(epoch), fence: Number(fence) };
  return { lease, counters: countersOf(fieldsOf(d)) };
}

export async function leave(connection: Connection, id: string): Promise<boolean> {
  return (await connection.eval("leave", [id])) === 1;
}

/** In the worker's row, and in the evidence of its incident if there is one. */
export async function noteDeath(connection: Connection, id: string, words: string): Promise<void> {
  for (;;) {
    const [shown, evidence = ""] = (await connection.eval("worker", [id])) as [Reply?, string?];
    if (shown === undefined) return;
    const after = withLastWord(evidence || null, words) ?? "";
    if ((await connection.eval("noteDeath", [id, words, evidence, after])) === 1) return;
  }
}

/** A worker that has ended is read in pieces of this many. */
const PIECE = 1_000;

export async function listWorkers(connection: Connection, query: WorkerQuery): Promise<readonly WorkerRow[]> {
  const { which = "present", after = "", limit = Number.MAX_SAFE_INTEGER, heldIds } = query;
  const asked = String(heldIds ?? 0);
  const rows: WorkerRow[] = [];
  const read = (reply: Reply): WorkerRow => workerRow(reply, heldIds !== undefined);
  if (which !== "leftBehind") {
    for (let last = after; ;) {
      const count = Math.min(PIECE, which === "present" ? limit - rows.length : PIECE);
      const piece = ((await connection.eval("listWorkers", ["present", last, String(count), asked])) as Reply[]).map(
        read,
      );
      rows.push(...piece);
      if (piece.length < count || (which === "present" && rows.length >= limit)) break;
      last = piece.at(-1)!.id;
    }
    if (which === "present") return rows;
  }
  for (let from = 0; ; from += PIECE) {
    const args = [which, "", String(PIECE), asked, String(from)];
    const [count, piece] = (await connection.eval("listWorkers", args)) as [number, Reply[]];
    rows.push(...piece.map(read));
    if (count < PIECE) break;
  }
  return rows
    .filter(({ id }) => id > after)
    .toSorted((a, b) => (a.id < b.id ? -1 : 1))
    .slice(0, limit);
}
