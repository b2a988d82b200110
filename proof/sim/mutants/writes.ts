// The small writes of an attempt: children, lines of the log, heartbeats and steps that are not what was accepted.
import type { Lease } from "../../../src/job/lease.ts";
import { APPLIED, type AttemptWrite, type Store, type WriteAnswer } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { unfencedWrite } from "./fences.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import { type Mutant, only, type StoreMutation, zombies } from "./mutant.ts";

interface Written {
  readonly lease: Lease;
  readonly write: AttemptWrite;
}

/** Writes of this type are answered and never reach the store. */
function forgetting(type: AttemptWrite["type"], answer: (write: AttemptWrite) => WriteAnswer): StoreMutation {
  return (store) =>
    withVerbs(store, {
      async write(writes) {
        const answers = [...(await store.write(writes.filter(({ write }) => write.type !== type)))];
        return writes.map(({ write }) => (write.type === type ? answer(write) : answers.shift()!));
      },
    });
}

/** `spoil` goes over each write of this type once it is answered, knowing the deadline that was before. */
function spoiling(
  type: AttemptWrite["type"],
  spoil: (db: Database, written: Written, answer: WriteAnswer, deadline: number | null) => void,
): StoreMutation {
  return (store, db) =>
    withVerbs(store, {
      async write(writes) {
        const deadlines = writes.map(({ lease }) => deadlineOf(db, lease));
        const answers = await store.write(writes);
        writes.forEach((one, i) => {
          if (one.write.type === type) spoil(db, one, answers[i]!, deadlines[i]!);
        });
        return answers;
      },
    });
}

function deadlineOf(db: Database, { row }: Lease): number | null {
  return db.sql("SELECT deadline_at FROM outlive_jobs WHERE seq = ?").get(row)?.["deadline_at"] as number | null;
}

function withNewIds(writes: Parameters<Store["write"]>[0]): readonly Written[] {
  return writes.map(({ lease, write }) =>
    write.type === "enqueue"
      ? {
          lease,
          write: { ...write, drafts: write.drafts.map((draft) => ({ ...draft, id: `${draft.id}-${lease.fence}` })) },
        }
      : { lease, write },
  );
}

export const writeMutants: readonly Mutant[] = [
  {
    name: "childrenTwice",
    what: "a child has another id at each attempt of its parent, so that a parent which runs again has it twice",
    focus: only(["family"], { kill: 1, pause: 1 }, {}),
    store: (store) => withVerbs(store, { write: (writes) => store.write(withNewIds(writes)) }),
  },
  {
    name: "childForgotten",
    what: "a child is acknowledged and never written",
    store: forgetting("enqueue", (write) => ({
      is: "applied",
      enqueued: write.type === "enqueue" ? write.drafts.map(({ id }) => ({ id, created: true })) : [],
    })),
  },
  {
    name: "logWithoutFence",
    what: "a zombie's line is in the log",
    focus: zombies("steps"),
    store: unfencedWrite("log"),
  },
  {
    name: "logForgotten",
    what: "a line of the log is acknowledged and never written",
    store: forgetting("log", () => APPLIED),
  },
  {
    name: "refusedLogWritten",
    what: "a zombie's line is refused, and is in the log all the same",
    focus: zombies("steps"),
    store: spoiling("log", (db, { lease, write }, answer) => {
      if (answer.is === "stale" && write.type === "log")
        db.sql("INSERT INTO outlive_logs (job, at, fence, message) VALUES (?, 0, ?, ?)").run(
          lease.row,
          lease.fence,
          write.message,
        );
    }),
  },
  {
    name: "heartbeatWithoutFence",
    what: "a zombie's heartbeat moves the deadline of an attempt that is not its own",
    focus: zombies("steps"),
    store: unfencedWrite("heartbeat"),
  },
  {
    name: "heartbeatMovesNothing",
    what: "a job's heartbeat is accepted and its deadline stays where it was",
    store: spoiling("heartbeat", (db, { lease }, answer, deadline) => {
      if (answer.is === "applied")
        db.sql("UPDATE outlive_jobs SET deadline_at = ? WHERE seq = ?").run(deadline, lease.row);
    }),
  },
  {
    name: "stepIsNoProgress",
    what: "a new step leaves the job's crashes as they were",
    focus: only(["steps"], { kill: 1 }, {}),
    schema: (db) =>
      db.exec(
        `CREATE TRIGGER sim_no_progress BEFORE UPDATE OF crashes ON outlive_jobs
         WHEN OLD.state = 1 AND NEW.state = 1 AND NEW.crashes < OLD.crashes BEGIN SELECT RAISE(IGNORE); END`,
      ),
  },
];
