// Workers: what they may claim, how they leave, and whose clock decides.
import { withVerbs } from "../../../src/stores/observed.ts";
import { rewriting } from "./instead.ts";
import { type Mutant, only } from "./mutant.ts";

export const workerMutants: readonly Mutant[] = [
  {
    name: "clientClock",
    what: "the store decides by the clock of the process that calls it",
    storeClock: (_host, process) => process,
  },
  {
    name: "deadlineByTheWallClock",
    what: "a job is fenced out when the store's clock says so, though the clock has only jumped",
    focus: only(["money", "long"], { hostClockJump: 1 }, { slow: 0, stall: 0, requestLost: 0, answerLost: 0 }),
    asks: (store) =>
      withVerbs(store, {
        heldBy: (query) =>
          store.heldBy(
            "overdue" in query ? { overdue: { marginMs: query.overdue.marginMs }, limit: query.limit } : query,
          ),
      }),
  },
  {
    name: "maintenanceTrustsTheWallClock",
    what: "maintenance ends its process for a job that is past its deadline on a clock that has only jumped",
    focus: only(
      ["money", "blockers"],
      { hostClockJump: 2, block: 2 },
      { slow: 0, stall: 0, requestLost: 0, answerLost: 0, nemesisEveryMs: 400 },
    ),
    asks: (store) =>
      withVerbs(store, {
        beat: (worker, { loopLagMs, lastWord }) =>
          store.beat(worker, { loopLagMs, ...(lastWord !== undefined && { lastWord }) }),
      }),
  },
  {
    name: "digestWithoutOneJob",
    what: "the heartbeat's count and digest leave out one of the jobs that the worker holds",
    focus: only(["long"], {}, { workers: 1, concurrency: 1, answerLost: 0.3, requestLost: 0, slow: 0, stall: 0 }),
    connection: rewriting([
      "min(j.deadline_at) AS deadline_at\n  FROM outlive_jobs j WHERE",
      "min(j.deadline_at) AS deadline_at\n  FROM outlive_jobs j WHERE j.seq <> (SELECT min(o.seq) FROM outlive_jobs o WHERE o.state = 1 AND o.worker = j.worker) AND",
    ]),
  },
  {
    name: "heartbeatStoppedBeforeTheDrain",
    what: "a worker that is asked to stop stops beating first and finishes its jobs afterwards",
    focus: only(
      ["money", "long"],
      { deploy: 1 },
      { workers: 2, requestLost: 0, answerLost: 0, slow: 0, stall: 0, durability: "full", nemesisEveryMs: 4_000 },
    ),
    beforeStop: (maintenance) => void maintenance.stop(),
  },
  {
    name: "unlockedBeforeTheDrain",
    what: "a worker's lock is free while its row is still live",
    liveness: (liveness, process) => ({
      ...liveness,
      async take(worker) {
        const lock = await liveness.take(worker);
        process.main.after(3_000, () => void lock.drop(true));
        return lock;
      },
    }),
  },
  {
    name: "deadMayClaim",
    what: "a worker whose row is not live any more makes it live and claims",
    store: (store, db) =>
      withVerbs(store, {
        turn(worker, settlements, room) {
          db.sql("UPDATE outlive_workers SET state = 'live' WHERE id = ? AND state <> 'live'").run(worker);
          return store.turn(worker, settlements, room);
        },
      }),
  },
  {
    name: "oneTooMany",
    what: "a worker is given more jobs than it has room for",
    store: (store) =>
      withVerbs(store, {
        turn: (worker, settlements, room) =>
          store.turn(worker, settlements, {
            ...room,
            total: room.total === 0 ? 0 : room.total + 1,
            kinds: room.kinds.map((kind) => ({ ...kind, room: kind.room === 0 ? 0 : kind.room + 1 })),
          }),
      }),
  },
  {
    name: "stoppedWithJobs",
    what: "a worker that leaves is called stopped although it still holds jobs",
    focus: only(["money", "steps"], { deploy: 1 }, { answerLost: 0.15, requestLost: 0, slow: 0, stall: 0 }),
    store: (store, db) =>
      withVerbs(store, {
        async leave(worker) {
          const left = await store.leave(worker);
          if (!left) db.sql("UPDATE outlive_workers SET state = 'stopped' WHERE id = ? AND state = 'live'").run(worker);
          return true;
        },
      }),
  },
];
