// The store port on SQLite, assembled: every verb is one operation of the writer or one short read. The statements are in the other
// files of this folder, one role each.
import type { Emitter } from "../../job/events.ts";
import type { Clock, Random } from "../../job/time.ts";
import { observed } from "../observed.ts";
import type { Store } from "../port.ts";
import { writeOfAttempt } from "./attempt-writes.ts";
import { batches, type Piece } from "./batches.ts";
import { collections } from "./collections.ts";
import { type Database, storeReplaced } from "./database.ts";
import { doorHeads } from "./door-heads.ts";
import { EnqueueGroup, ensureIdentity, insertJobs, Kinds, storeIdentity } from "./enqueue.ts";
import { wrapError } from "./errors.ts";
import { inspecting } from "./inspect.ts";
import { declareLimits } from "./keys.ts";
import { losses } from "./incidents.ts";
import { operating } from "./operate.ts";
import { Purging } from "./purge.ts";
import { Recovering } from "./recover.ts";
import { schedules } from "./schedules.ts";
import { Settling } from "./settle.ts";
import { type SqliteTransaction, transactions } from "./transaction.ts";
import { Front } from "./claim.ts";
import { takeTurn } from "./turn.ts";
import { upkeep } from "./upkeep.ts";
import type { WakeupChannel } from "./wakeup.ts";
import { type MarkFile, markFile, Workers } from "./workers.ts";
import { type FileAccess, whenFree, Writer } from "./writer.ts";

export interface SqliteStoreDeps {
  readonly db: Database;
  readonly clock: Clock;
  readonly random: Random;
  readonly newId: () => string;
  /** Which boot this is. Omitted: this connection is not one that can notice a restore. */
  readonly bootId?: string;
  /** Where the mark of the file is kept. Omitted: next to the file. */
  readonly mark?: MarkFile;
  /** Rings other processes; null for a database that only this one has. */
  readonly wakeup: WakeupChannel | null;
  /** Gives the file an identity if it has none. It shares the transaction of the first write; if that fails, the next open does it. */
  readonly identify?: boolean;
  /** Receives how long each call took. */
  readonly events?: Emitter;
  /** Called once, before the connection is closed. */
  readonly onClose?: () => void;
}

/** Each purge has the write lock once, and a worker that finds it taken waits for some ms: a quarter of the purges, four times as large, costs a drain next to them much less. */
const PURGES_AT_ONCE = 2_000;
/** How long a piece of a purge, or of what is done to many blocks, holds the write lock, and the thread. */
const PIECE_MS = 20;

export function sqliteStore(deps: SqliteStoreDeps): Store<SqliteTransaction> {
  const { db, clock, random, newId, bootId, mark = markFile(db.path), wakeup } = deps;
  const kinds = new Kinds(db);
  const workers = new Workers(db);
  const settling = new Settling(db, kinds, workers);
  const recovering = new Recovering(db, kinds, workers);
  const purging = new Purging(db, kinds);
  const group = new EnqueueGroup();
  const writer = new Writer(db, clock, random, {
    ending: () => group.count(kinds),
    undone() {
      group.forget();
      doorHeads(db).clear();
      kinds.forgetIds();
      workers.undone();
    },
  });
  const parts = { db, newId, kinds, workers, settling, front: new Front() };
  const now = (): number => clock.now();
  const write: FileAccess["write"] = (run, ownSavepoint) => writer.write(run, ownSavepoint);
  // A read is refused as busy only while another process opens the file first or closes it last: for a moment.
  const read: FileAccess["read"] = (run) => {
    const replaced = db.whyReplaced();
    return replaced === null ? whenFree(clock, random, run) : Promise.reject(storeReplaced(db.path, replaced));
  };
  const access: FileAccess = { db, now, write, read };
  const piece: Piece = () => {
    const until = clock.mono() + PIECE_MS;
    return () => clock.mono() >= until;
  };
  if (deps.identify && storeIdentity(db) === null) void write(() => ensureIdentity(db, newId)).catch(() => {});

  return observed<SqliteTransaction>(
    {
      name: "sqlite",
      purgesAtOnce: PURGES_AT_ONCE,
      declare: (given) =>
        write(() => {
          kinds.declare(given);
          declareLimits(
            db,
            given.flatMap(({ keyed = [] }) => keyed),
            now(),
          );
        }),
      enqueue: (drafts) => write(() => insertJobs(db, kinds, drafts, now(), null, false, group)),
      register: (worker) => write(() => workers.register(worker, now())),
      turn: (worker, settlements, room) => writer.writeNow(() => takeTurn(parts, worker, settlements, room, now())),
      write: (writes) =>
        write(() => {
          const at = now();
          return writes.map((one) => writeOfAttempt(db, kinds, settling, one.lease, one.write, at));
        }),
      beat: (worker, beat) =>
        write(() => {
          const replaced = db.whyLogReplaced();
          if (replaced !== null) throw storeReplaced(db.path, replaced);
          return workers.beat(worker, beat, now());
        }),
      leave: (worker) => write(() => workers.leave(worker, now())),
      workers: (query) => read(() => workers.list(query)),
      condemn: (request) => write(() => recovering.condemn(request, now())),
      heldBy: (query) => read(() => recovering.heldBy(query, now())),
      takeBack: (request) => write(() => recovering.takeBack(request, now())),
      async purge(request) {
        const at = now();
        const candidates = await read(() => purging.candidates(request, at));
        if (!candidates.any) return { jobs: 0, incidents: 0, more: candidates.more };
        return write(() => purging.delete(candidates, request, at, piece()));
      },
      async close() {
        await writer.close();
        wakeup?.close();
        deps.onClose?.();
        db.close();
      },
      inspect: inspecting(access, writer),
      operate: operating(access, workers, purging),
      losses: losses(access, kinds, recovering),
      transactions: transactions(access, parts),
      batches: batches(access, kinds, purging, piece),
      schedules: schedules(access, kinds),
      collections: collections(access, kinds),
      upkeep: upkeep(access, { workers, mark, bootId }),
    },
    {
      words: (doing, thrown) => (writer.isOfCallback(thrown) ? thrown : wrapError(doing, thrown)),
      wakeups: wakeup,
      ...(deps.events && { telemetry: { events: deps.events, clock } }),
    },
  );
}
