// A worker as the conformance tests move it: it claims, settles and writes by hand, one call at a time, and never by itself.
import assert from "node:assert/strict";
import type { StoredError } from "../../core/errors.ts";
import type { HeldSuspects } from "../../core/isolation.ts";
import type { ClaimedJob, KindSettings } from "../../core/job.ts";
import type { WorkerRow } from "../../core/liveness.ts";
import type { AttemptWrite, Room, SettleAndClaim, Settlement, Store, WriteAnswer } from "../../core/store.ts";
import * as transitions from "../../core/transitions.ts";
import { kind } from "./drafts.ts";

export const NO_ROOM: Room = { total: 0, kinds: [] };

/** Room for `total` jobs, of each kind as many, in a worker that holds no suspect unless said otherwise. */
export function roomFor(
  total: number,
  kinds: readonly string[] = ["mail", "sms"],
  suspects: Partial<HeldSuspects> = {},
): Room {
  const held = { count: 0, together: null, oldestFirst: false, ...suspects };
  return { total, kinds: kinds.map((name) => ({ kind: name, room: total })), suspects: held };
}

export class Hand {
  readonly id: string;
  readonly store: Store;
  /** The epoch under which it registered. */
  readonly epoch: number;

  constructor(store: Store, id: string, epoch: number) {
    this.store = store;
    this.id = id;
    this.epoch = epoch;
  }

  /** Its row, also when it is over. */
  async row(): Promise<WorkerRow> {
    const row = (await this.store.workers({ which: "all" })).find(({ id }) => id === this.id);
    assert.ok(row, `worker ${this.id} has a row`);
    return row;
  }

  /** One turn of the worker's loop. */
  turn(settlements: readonly Settlement[], room: Room): Promise<SettleAndClaim> {
    return this.store.settleAndClaim(this.id, settlements, room);
  }

  async claim(room: Room | number): Promise<readonly ClaimedJob[]> {
    return (await this.turn([], typeof room === "number" ? roomFor(room) : room)).claimed;
  }

  /** Claims the next job, and fails the test if there is none. */
  async next(room: Room = roomFor(1)): Promise<ClaimedJob> {
    const [job] = await this.claim(room);
    assert.ok(job, `there is a job for ${this.id}`);
    return job;
  }

  async settle(...settlements: readonly Settlement[]): Promise<readonly WriteAnswer[]> {
    return (await this.turn(settlements, NO_ROOM)).settled;
  }

  async record(job: ClaimedJob, ...writes: readonly AttemptWrite[]): Promise<readonly WriteAnswer[]> {
    return this.store.record(writes.map((write) => ({ lease: job.lease, write })));
  }
}

/** The ids of claimed jobs, in the order of the claim. */
export function idsOf(jobs: readonly ClaimedJob[]): readonly string[] {
  return jobs.map((job) => job.lease.jobId);
}

/** The kinds of answers, in order. */
export function answers(written: readonly WriteAnswer[]): readonly WriteAnswer["is"][] {
  return written.map((answer) => answer.is);
}

const BROKEN: StoredError = { name: "Error", message: "the printer is on fire" };

/** Every way in which an attempt can be settled by its worker. */
export const SETTLE = {
  succeed: (job: ClaimedJob, result: string | null = null): Settlement => ({
    lease: job.lease,
    change: transitions.succeed(view(job), result),
  }),
  fail: (job: ClaimedJob, delayMs = 0, settings: KindSettings = kind(job.kind)): Settlement => ({
    lease: job.lease,
    change: transitions.fail(view(job), settings, BROKEN, delayMs, false),
  }),
  failForGood: (job: ClaimedJob): Settlement => ({
    lease: job.lease,
    change: transitions.fail(view(job), kind(job.kind), BROKEN, 0, true),
  }),
  timeOut: (job: ClaimedJob): Settlement => ({
    lease: job.lease,
    change: transitions.timeOut(view(job), kind(job.kind), 0),
  }),
  release: (job: ClaimedJob, delayMs = 0): Settlement => ({
    lease: job.lease,
    change: transitions.release(view(job), "its worker shut down", delayMs),
  }),
  endCancelled: (job: ClaimedJob): Settlement => ({
    lease: job.lease,
    change: transitions.endCancelled(view(job), "cancelled while it ran"),
  }),
  refuse: (job: ClaimedJob): Settlement => ({ lease: job.lease, change: transitions.refuse(view(job), BROKEN) }),
} as const;

export type SettleName = keyof typeof SETTLE;
export const SETTLE_NAMES = Object.keys(SETTLE) as readonly SettleName[];

function view(job: ClaimedJob): transitions.JobView {
  return { id: job.lease.jobId, state: "running", counters: job.counters };
}
