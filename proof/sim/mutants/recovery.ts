// Recovery: who is taken for dead, what becomes of their jobs, and who is blamed.
import type { HeldJob } from "../../../src/core/store.ts";
import type { CrashVerdict } from "../../../src/core/transitions.ts";
import { instead } from "./instead.ts";
import { type Mutant, only, type StoreMutation } from "./mutant.ts";

/** Decides as recovery does, of the same incident. */
type Decide = (job: HeldJob, held: number) => CrashVerdict;

function deciding(decide: (job: HeldJob, held: number, rightly: Decide) => CrashVerdict): StoreMutation {
  return (store) =>
    instead(store, {
      recover: (request) =>
        store.recover({
          ...request,
          decide: (job, held, how) => decide(job, held, (same, count) => request.decide(same, count, how)),
        }),
    });
}

export const recoveryMutants: readonly Mutant[] = [
  {
    name: "crashesNotCounted",
    what: "recovery queues again without counting: a job that kills its workers does so for ever",
    store: deciding((job, held, rightly) => {
      const verdict = rightly(job, held);
      return { decision: "retry", change: { ...verdict.change, to: "queued", counters: job.counters } };
    }),
  },
  {
    name: "innocentsBlamed",
    what: "everybody in flight is blamed for a death, as if each had run alone",
    store: deciding((job, _held, rightly) => rightly(job, 1)),
  },
  {
    name: "nobodyBlamed",
    what: "no death is ever blamed on a job",
    store: deciding((job, _held, rightly) => rightly(job, 2)),
  },
  {
    name: "othersDeathsIgnored",
    what: "a job is quarantined although as many workers died that did not hold it",
    store: deciding((job, held, rightly) => rightly({ ...job, deathsElsewhere: 0 }, held)),
  },
  {
    name: "noHardLimit",
    what: "as long as others die, no job is ever quarantined",
    store: deciding((job, held, rightly) => {
      const { counters, deathsElsewhere } = job;
      return rightly(job, deathsElsewhere > counters.blamed ? 2 : held);
    }),
  },
  {
    name: "reaperWithoutGuard",
    what: "a silent worker is recovered although it has beaten since it was looked at",
    focus: only(["money"], { pause: 1 }, { workers: 4, ambush: 0.9, slow: 0.2, slowMs: 100 }),
    store: (store, db) =>
      instead(store, {
        recover(request) {
          const row = db.sql("SELECT beats FROM outlive_workers WHERE id = ?").get(request.worker.id);
          return store.recover({
            ...request,
            worker: { ...request.worker, beats: (row?.["beats"] as number) ?? request.worker.beats },
          });
        },
      }),
  },
  {
    name: "liveTakenForDead",
    what: "a worker whose lock is held and who beats is taken for dead",
    store: (store) =>
      instead(store, {
        async workers(query) {
          const rows = await store.workers(query);
          return rows.map((row) => ({ ...row, leaseMs: Math.min(row.leaseMs, 1_000) }));
        },
        recover: (request) => store.recover({ ...request, death: { ...request.death, how: "gone" } }),
      }),
  },
  {
    name: "overdueTooEarly",
    what: "jobs are fenced out before their grace is over",
    store: (store) =>
      instead(store, {
        expire: (marginMs, limit, decide, confirmed) => store.expire(marginMs - 3_000, limit, decide, confirmed),
      }),
  },
  {
    name: "finishedRecoveredToo",
    what: "recovery puts back everything that the dead worker ever ran",
    store: (store, db) =>
      instead(store, {
        async recover(request) {
          const answer = await store.recover(request);
          db.sql(
            "UPDATE outlive_jobs SET state = 0, lane = 1 WHERE state = 2 AND worker = (SELECT seq FROM outlive_workers WHERE id = ?)",
          ).run(request.worker.id);
          return answer;
        },
      }),
  },
  {
    name: "incidentForgotten",
    what: "a recovery that goes on opens a second incident of the same death",
    store: (store, db) =>
      instead(store, {
        recover(request) {
          db.sql("UPDATE outlive_workers SET incident = NULL WHERE id = ? AND state = 'recovering'").run(
            request.worker.id,
          );
          return store.recover(request);
        },
      }),
  },
  {
    name: "recoveredHalfway",
    what: "the first transaction of a recovery calls the worker gone, whatever is left",
    store: (store, db) =>
      instead(store, {
        async recover(request) {
          const answer = await store.recover({ ...request, limit: 1 });
          if (!answer.done) db.sql("UPDATE outlive_workers SET state = 'gone' WHERE id = ?").run(request.worker.id);
          return { ...answer, done: true };
        },
      }),
  },
];
