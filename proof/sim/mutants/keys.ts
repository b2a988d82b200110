// Jobs with keys and events: slots that are not released or not counted, starts that cost nothing, an order that is forgotten, keys that are never
// checked again, and events of which no attempt ever sees anything.
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { settling } from "./ends.ts";
import { rewriting } from "./instead.ts";
import { type Mutant, only } from "./mutant.ts";

const QUIET = only(["keys"], {}, { jobs: 40, durability: "full" });
const FAIRLY = only(["keys"], {}, { jobs: 60, durability: "full", workers: 2, concurrency: 2 });
const AHEAD = only(["keys"], {}, { jobs: 60, durability: "full", workers: 2, concurrency: 1, ahead: 8 });
const DOORS = only(["doors"], {}, { jobs: 80, durability: "full", workers: 1, concurrency: 6 });
const FEW_SLOTS = only(
  ["doors"],
  {},
  { jobs: 30, durability: "full", workers: 1, concurrency: 6, producers: 1, console: false },
);
const KILLS = only(["keys"], { kill: 1 }, { jobs: 40, durability: "full" });

function trigger(text: string): (db: Database) => void {
  return (db) => db.exec(`CREATE TRIGGER sim_keys ${text}; END`);
}

/** A job that leaves its key, or goes back to its door, stays where it was in the eyes of the others, if this holds of its row. */
function slotKept(when: string): (db: Database) => void {
  return trigger(
    `BEFORE UPDATE OF place ON outlive_extras
     WHEN OLD.place = 2 AND NEW.place < 2 AND EXISTS (SELECT 1 FROM outlive_jobs WHERE seq = NEW.job AND ${when})
     BEGIN SELECT RAISE(IGNORE)`,
  );
}

/** The mark of an event is dropped when its job changes like this. */
function markDropped(when: string): (db: Database) => void {
  return trigger(
    `AFTER UPDATE OF state ON outlive_jobs WHEN ${when} BEGIN DELETE FROM outlive_reruns WHERE job = NEW.seq`,
  );
}

export const keyMutants: readonly Mutant[] = [
  {
    name: "slotKeptBySuccess",
    what: "a job has succeeded, and keeps the slot of its key",
    focus: QUIET,
    schema: slotKept("state = 2"),
  },
  {
    name: "slotKeptInBackoff",
    what: "a job in backoff keeps the slot of its key",
    focus: QUIET,
    schema: slotKept("state = 0 AND outcome = 1"),
  },
  {
    name: "slotKeptWhileWaiting",
    what: "a job that sleeps keeps the slot of its key",
    focus: QUIET,
    schema: slotKept("state = 0 AND outcome = 9"),
  },
  {
    name: "slotKeptByCancel",
    what: "a job is cancelled, and keeps the slot of its key",
    focus: QUIET,
    schema: slotKept("state = 4"),
  },
  {
    name: "slotKeptByRecovery",
    what: "recovery queues a job again whose worker died, and leaves it in the slot of its key",
    focus: KILLS,
    schema: slotKept("state = 0 AND outcome = 3"),
  },
  {
    name: "slotKeptByTimeout",
    what: "a job that is overdue is fenced out, and keeps the slot of its key",
    focus: QUIET,
    schema: slotKept("outcome = 2"),
  },
  {
    name: "admittedWithoutASlot",
    what: "a job is admitted, and does not count against its key",
    focus: QUIET,
    connection: rewriting([
      "UPDATE outlive_extras SET place = 2, door = NULL",
      "UPDATE outlive_extras SET place = 0, door = NULL",
    ]),
  },
  {
    name: "oneMoreThanTheLimit",
    what: "a key that is full admits one more: its limit is compared with <=",
    focus: QUIET,
    connection: rewriting(
      [
        "(SELECT count(*) FROM outlive_extras WHERE key1 = k.value",
        "(SELECT max(0, count(*) - 1) FROM outlive_extras WHERE key1 = k.value",
      ],
      [
        "(SELECT count(*) FROM outlive_jobs WHERE only_key = k.value",
        "(SELECT max(0, count(*) - 1) FROM outlive_jobs WHERE only_key = k.value",
      ],
    ),
  },
  {
    name: "slotsOfRowsNotCounted",
    what: "a job that was claimed at its door runs, and does not count against its key",
    focus: DOORS,
    connection: rewriting([
      "(SELECT count(*) FROM outlive_jobs WHERE only_key = k.value",
      "(SELECT 0 * count(*) FROM outlive_jobs WHERE only_key = k.value",
    ]),
  },
  {
    name: "secondKeyNotCounted",
    what: "of a job with two keys only the first is counted",
    focus: QUIET,
    connection: rewriting([
      "(SELECT count(*) FROM outlive_extras WHERE key2 = k.value",
      "(SELECT 0 * count(*) FROM outlive_extras WHERE key2 = k.value",
    ]),
  },
  {
    name: "secondKeyNotWoken",
    what: "a job with two keys leaves, and the second is not checked again",
    focus: QUIET,
    schema: trigger(
      "BEFORE INSERT ON outlive_key_wakes WHEN EXISTS (SELECT 1 FROM outlive_extras WHERE key2 = NEW.key) BEGIN SELECT RAISE(IGNORE)",
    ),
    connection: rewriting([
      "RETURNING job, parent, watched, key1, key2, key3",
      "RETURNING job, parent, watched, key1, NULL, NULL",
    ]),
  },
  {
    name: "keyWakesDeletedUnread",
    what: "several keys may have room; one of them is looked at, and the wakes of all are deleted",
    focus: QUIET,
    connection: rewriting(
      ["FROM outlive_key_wakes ORDER BY id LIMIT 200", "FROM outlive_key_wakes ORDER BY id LIMIT 1"],
      ["DELETE FROM outlive_key_wakes WHERE id <= ?", "DELETE FROM outlive_key_wakes WHERE id <= ? + 9"],
    ),
  },
  {
    name: "wakeOfAnotherKeyIsEnough",
    what: "a key is not woken while the wake of another one waits",
    focus: QUIET,
    connection: rewriting([
      "NOT EXISTS (SELECT 1 FROM outlive_key_wakes w WHERE w.key = k.key)",
      "NOT EXISTS (SELECT 1 FROM outlive_key_wakes w)",
    ]),
  },
  {
    name: "roomByTimeForgotten",
    what: "a key whose rate or hold-off keeps a job waiting is not looked at when its time has come",
    focus: QUIET,
    connection: rewriting(["DO UPDATE SET due_at = excluded.due_at", "DO UPDATE SET due_at = NULL"]),
  },
  {
    name: "startNotSpent",
    what: "a job with a rate starts, and the start costs nothing",
    focus: QUIET,
    connection: rewriting(["DO UPDATE SET arrival_at = excluded.arrival_at", "DO UPDATE SET arrival_at = arrival_at"]),
  },
  {
    name: "startSpentAtAdmission",
    what: "what was admitted and waits for a worker has no start set aside",
    focus: only(["keys"], {}, { jobs: 40, durability: "full", workers: 2, concurrency: 1 }),
    connection: rewriting([" AND e.place > 1 AND j.state = 0", " AND e.place > 1 AND j.state = 9"]),
  },
  {
    name: "startNotReturned",
    what: "a job of a rate that was claimed ahead is released before it began, and pays for a second start",
    focus: AHEAD,
    connection: rewriting(["AND e.place = 2 AND e.rank = -1000000", "AND e.place = 2 AND e.rank = 1000001"]),
  },
  {
    name: "startReturnedOfABegun",
    what: "a job of a rate that began is released at a shutdown, and its start is returned",
    focus: only(["keys"], { deploy: 1 }, { jobs: 60, durability: "full" }),
    asks: settling((change) => (change.name === "release" ? { ...change, unstarted: true } : change)),
  },
  {
    name: "startReturnedWhole",
    what: "a start that time has returned already is returned a second time",
    focus: only(["keys"], {}, { jobs: 60, durability: "full", answerLost: 0.1 }),
    connection: rewriting(["e.keys, j.started_at FROM", "e.keys, j.started_at + 1000000 FROM"]),
  },
  {
    name: "ratesResetByAStart",
    what: "a worker starts, and all rates are reset",
    focus: KILLS,
    schema: trigger("AFTER INSERT ON outlive_workers BEGIN UPDATE outlive_keys SET arrival_at = 0"),
  },
  {
    name: "holdOffForgotten",
    what: "a key that is held off starts jobs all the same",
    focus: QUIET,
    connection: rewriting(["o.arrival_at, o.held_off_until,", "o.arrival_at, 0 * o.held_off_until,"]),
  },
  {
    name: "strictHeadForgotten",
    what: "the first of a strict key is in backoff or asleep, and the next one starts",
    focus: QUIET,
    // Once for each column of keys.
    connection: rewriting(...Array.from({ length: 3 }, () => ["place <= ?2 + 0", "place <= min(?2, 2)"] as const)),
  },
  {
    name: "strictPlaceLost",
    what: "the first of a strict key is held by another limit, and the next one overtakes it",
    focus: QUIET,
    connection: rewriting(["SET door = ?, place = ?, ring", "SET door = ?, place = min(?, 1), ring"]),
  },
  {
    name: "strictByPriority",
    what: "the jobs of a strict key start in the opposite order",
    focus: QUIET,
    connection: rewriting([
      "ORDER BY d.ring, d.rank DESC, d.job LIMIT",
      "ORDER BY d.ring, d.rank DESC, d.job DESC LIMIT",
    ]),
  },
  {
    name: "ringBeginsAgain",
    what: "each turn begins with the same key of a fair kind, and those behind it are passed over",
    focus: FAIRLY,
    connection: rewriting(["SELECT ring_at AS at, ring_served AS served", "SELECT 0 AS at, 0 AS served"]),
  },
  {
    name: "ringNotKept",
    what: "a key has had its turn, and it is not recorded that the next one follows",
    focus: FAIRLY,
    connection: rewriting([
      "DO UPDATE SET ring_at = ?4, ring_served = ?5",
      "DO UPDATE SET ring_at = ring_at + 0 * ?4 * ?5",
    ]),
  },
  {
    name: "visitWithoutAnEnd",
    what: "a key takes nine jobs in each of its turns, whatever its weight",
    focus: FAIRLY,
    connection: rewriting(["ifnull(o.weight, 1)", "9"]),
  },
  {
    name: "fairByAge",
    what: "the jobs of a fair kind stand in one line, whosever they are",
    focus: FAIRLY,
    connection: rewriting(["ring = CASE WHEN ? THEN 0 ELSE ifnull(fair, 0) END", "ring = 0 * ?"]),
    schema: trigger(
      `AFTER INSERT ON outlive_doors WHEN NEW.ring > 1 BEGIN
         UPDATE outlive_extras SET ring = 1 WHERE job = NEW.job;
         UPDATE outlive_doors SET ring = 1 WHERE job = NEW.job AND door = NEW.door AND ring = NEW.ring`,
    ),
  },
  {
    name: "staleEntryBelieved",
    what: "a job that has left its door is taken for the first there, because its entry is not removed yet",
    focus: QUIET,
    connection: rewriting(
      ["e.job = d.job AND e.door = d.door AND e.ring = d.ring AND e.rank = d.rank", "e.job = d.job"],
      ["AND EXISTS (SELECT 1 FROM outlive_jobs h WHERE h.seq = d.job AND h.state = 0 AND h.lane = 3)", ""],
    ),
  },
  {
    name: "takenByOthersAdmitted",
    what: "what a process remembers of a door is admitted and claimed, although another process has taken it meanwhile",
    focus: QUIET,
    connection: rewriting(
      ["PRAGMA data_version", "SELECT 1"],
      ["state = 0 AND lane = 3 AND priority = 0 AND", ""],
      ["deadline_at = ? WHERE state = 0 AND lane = 3 AND", "deadline_at = ? WHERE"],
    ),
  },
  {
    name: "suspectTakenAtItsDoor",
    what: "a job whose worker died is taken straight from its door like any other, next to as many suspects as there are",
    focus: only(["doors"], { kill: 1 }, { jobs: 40, durability: "full", workers: 2, concurrency: 4 }),
    connection: rewriting(
      ["AND kind = ? AND state = 0 AND crashes + losses = 0", "AND kind = ? AND state = 0"],
      ["AND priority = 0 AND crashes + losses = 0", "AND priority = 0"],
    ),
  },
  {
    name: "claimedAtItsDoorAndHeld",
    what: "a job that was claimed at its door, and runs or has ended, is taken for one that waits there",
    focus: DOORS,
    connection: rewriting(["h.state = 0 AND h.lane = 3", "h.lane = 3"]),
  },
  {
    name: "firstRemovedAsStale",
    what: "with the entries of jobs that have left a door, that of the first job there is removed",
    focus: DOORS,
    connection: rewriting(["AND ring = 0 AND rank = ? AND job < ?", "AND ring = 0 AND rank = ? AND job <= ?"]),
  },
  {
    name: "waitingRemovedAsStale",
    what: "with the entries that a worker remembers to have left behind at a door, those of jobs that still wait there are removed",
    focus: FEW_SLOTS,
    connection: rewriting(["AND ring = 0 AND rank = 0 AND job <= ?", "AND ring = 0 AND rank = 0 AND job <= ? + 1"]),
  },
  {
    name: "claimedTwiceAtItsDoor",
    what: "a door is visited twice in one turn, and a job that was found there is claimed a second time",
    focus: FEW_SLOTS,
    connection: rewriting([
      "fence = fence + 1, started_at = ?, deadline_at = ? WHERE state = 0 AND lane = 3 AND",
      "fence = fence + 2, started_at = ?, deadline_at = ? WHERE state = 0 AND lane = 3 AND",
    ]),
  },
  {
    name: "pauseOfAKeyIgnored",
    what: "a key is paused, and jobs of it are admitted all the same",
    focus: QUIET,
    connection: rewriting(["o.held_off_until, o.paused_at,", "o.held_off_until, NULL,"]),
  },
  {
    name: "pauseLeavesTheAdmitted",
    what: "a key is paused, and what was admitted before starts all the same",
    focus: only(["keys"], {}, { jobs: 60, durability: "full", workers: 2, concurrency: 1 }),
    connection: rewriting(
      ...Array.from(
        { length: 3 },
        () =>
          [
            "SELECT e.job FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job\n",
            "SELECT e.job FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job AND 0\n",
          ] as const,
      ),
    ),
  },
  {
    name: "rerunDroppedByACrash",
    what: "an event came while the job ran, and is forgotten when its worker dies",
    focus: KILLS,
    schema: markDropped("OLD.state = 1 AND NEW.state = 0 AND NEW.outcome = 3"),
  },
  {
    name: "rerunDroppedByACancel",
    what: "an event came after the job had begun, and is forgotten when that is cancelled",
    focus: QUIET,
    schema: markDropped("NEW.state = 4"),
  },
  {
    name: "rerunDroppedByAFailure",
    what: "an event came while the job ran, and is forgotten when that attempt fails",
    focus: QUIET,
    schema: markDropped("OLD.state = 1 AND NEW.state = 0 AND NEW.outcome = 1"),
  },
  {
    name: "rerunWithTheFirstInput",
    what: "of several events the first is kept, and not the last",
    focus: QUIET,
    connection: rewriting([
      "ON CONFLICT DO UPDATE SET draft = ?2, at = ?3, latest_at = ?4",
      "ON CONFLICT DO UPDATE SET at = ?3, latest_at = ?4",
    ]),
  },
  {
    name: "rerunNotWoken",
    what: "a job has ended, and the event that came while it ran is ignored",
    focus: QUIET,
    schema: trigger(
      "BEFORE INSERT ON outlive_wakes WHEN EXISTS (SELECT 1 FROM outlive_reruns WHERE job = NEW.job) BEGIN SELECT RAISE(IGNORE)",
    ),
  },
  {
    name: "debounceWithoutMax",
    what: "every event puts a debounced job off again, without an end",
    focus: QUIET,
    connection: rewriting(["SELECT j.lane, e.latest_at, j.kind FROM", "SELECT j.lane, NULL AS latest_at, j.kind FROM"]),
  },
];
