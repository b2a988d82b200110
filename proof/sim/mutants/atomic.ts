// Bugs on purpose in the store in the shape of Redis: what a script writes is changed on its way into the tables, or does not arrive.
import type { DedupePolicy } from "../../../src/job/limits.ts";
import { AtomicServer, type Keyspace } from "../stores/atomic-server.ts";
import type { BatchRecord, BlockRecord, JobRecord, KeyRecord, RerunRecord } from "../stores/records.ts";

export interface AtomicMutant {
  readonly name: string;
  /** What is wrong with it. */
  readonly what: string;
  /** The first seed that shows it; another world has others. */
  readonly from: number;
  /** The sentence of the law that has to see it. */
  readonly law: RegExp;
  readonly Server: typeof AtomicServer;
  /** Which histories show it. Omitted: those of jobs. */
  readonly of?: "batches";
}

/** What is written instead, given what was there; null: nothing. */
type Tamper = (record: never, before: never) => unknown;

const HOUR_MS = 3_600_000;

function writing(table: string | RegExp, tamper: Tamper): typeof AtomicServer {
  const isIt = (name: string): boolean => (typeof table === "string" ? name === table : table.test(name));
  return class extends AtomicServer {
    override eval(name: string, body: (keys: Keyspace) => string): string {
      return super.eval(name, (keys) =>
        body({
          now: keys.now,
          run: keys.run,
          get wrote() {
            return keys.wrote;
          },
          get: (from, field) => keys.get(from, field),
          fields: (from) => keys.fields(from),
          delete: (from, field) => keys.delete(from, field),
          set: (into, field, text) => {
            if (!isIt(into)) return keys.set(into, field, text);
            const before = keys.get(into, field);
            const record = tamper(JSON.parse(text) as never, JSON.parse(before ?? "null") as never);
            if (record !== null) keys.set(into, field, JSON.stringify(record));
          },
        }),
      );
    }
  };
}

const key = (tamper: (key: KeyRecord, before: KeyRecord | null) => KeyRecord | null): typeof AtomicServer =>
  writing("limited", tamper);
const job = (tamper: (job: JobRecord, before: JobRecord | null) => JobRecord): typeof AtomicServer =>
  writing("jobs", tamper);
const rerun = (tamper: (rerun: RerunRecord, before: RerunRecord | null) => RerunRecord | null): typeof AtomicServer =>
  writing("reruns", tamper);

const batch = (tamper: (batch: BatchRecord, before: BatchRecord | null) => BatchRecord): typeof AtomicServer =>
  writing("batches", tamper);
const block = (tamper: (block: BlockRecord, before: BlockRecord | null) => BlockRecord): typeof AtomicServer =>
  writing(/^blocks\//, tamper);

function policyOf({ draft }: RerunRecord): DedupePolicy | undefined {
  return draft.dedupe;
}

export const ATOMIC_MUTANTS: readonly AtomicMutant[] = [
  {
    name: "startNotSpent",
    from: 11,
    what: "a job with a rate starts, and the start costs nothing",
    law: /too many starts/,
    Server: key((record) => ({ ...record, arrivalAt: 0 })),
  },
  {
    name: "startHalfSpent",
    from: 16,
    what: "a start of a rate costs half of what it should",
    law: /too many starts/,
    Server: key((record, before) => {
      const from = before?.arrivalAt ?? 0;
      return {
        ...record,
        arrivalAt: record.arrivalAt > from && from > 0 ? (record.arrivalAt + from) / 2 : record.arrivalAt,
      };
    }),
  },
  {
    name: "holdOffForgotten",
    from: 15,
    what: "a key that is held off starts jobs all the same",
    law: /may start anything/,
    Server: key((record) => ({ ...record, heldOffUntil: 0 })),
  },
  {
    name: "holdOffByTheLatest",
    from: 108,
    what: "a shorter hold-off replaces a longer one",
    law: /may start anything/,
    Server: key((record, before) =>
      before && before.heldOffUntil > 0
        ? { ...record, heldOffUntil: Math.min(record.heldOffUntil, before.heldOffUntil) }
        : record,
    ),
  },
  {
    name: "holdOffWithoutEnd",
    from: 6,
    what: "a key that was held off stays so for an hour",
    law: /stuck key/,
    Server: key((record, before) =>
      record.heldOffUntil > (before?.heldOffUntil ?? 0)
        ? { ...record, heldOffUntil: record.heldOffUntil + HOUR_MS }
        : record,
    ),
  },
  {
    name: "strictPlaceLost",
    from: 150,
    what: "the first of a strict key is held by another limit, and the next one overtakes it",
    law: /strict order/,
    Server: job((record) => ({ ...record, keepsPlace: false })),
  },
  {
    name: "rerunForgotten",
    from: 30,
    what: "an event comes after the job has begun, and is not kept",
    law: /lost rerun/,
    Server: rerun(() => null),
  },
  {
    name: "rerunWithTheFirstInput",
    from: 294,
    what: "of several events the first is kept, and not the last",
    law: /lost rerun/,
    Server: rerun((record, before) => (before ? { ...record, draft: before.draft } : record)),
  },
  {
    name: "debounceWithoutMax",
    from: 14,
    what: "every event puts a debounced job off again, without an end",
    law: /debounce: .* is put off/,
    Server: job((record) => ({ ...record, latestAt: null })),
  },
  {
    name: "debounceAtOnce",
    from: 4,
    what: "a debounced job does not wait until it is quiet",
    law: /debounce: .* before it was quiet/,
    Server: job((record) => (record.latestAt !== null && record.fence === 0 ? { ...record, runAt: null } : record)),
  },
  {
    name: "rerunNotDebounced",
    from: 112,
    what: "a debounced event that came while its job ran becomes a job at once",
    law: /debounce: .* before it was quiet/,
    Server: rerun((record) =>
      policyOf(record)?.debounce ? { ...record, draft: { ...record.draft, runAt: null, delayMs: 0 } } : record,
    ),
  },
  {
    name: "markTakenAway",
    of: "batches",
    from: 1,
    what: "the end of a row takes the marks of the rows away that ended before",
    law: /mark taken away|sums differ|row twice/,
    Server: block((record, before) => ({
      ...record,
      marks: record.marks === null || !before?.marks ? record.marks : marksWithout(record.marks, before.marks),
    })),
  },
  {
    name: "rowEndsUncounted",
    of: "batches",
    from: 1,
    what: "ends of rows are marked and not added to the sums of their batch",
    law: /sums differ/,
    Server: batch((record, before) => (before ? { ...record, sums: before.sums } : record)),
  },
  {
    name: "sealedIsCompleted",
    of: "batches",
    from: 1,
    what: "a batch that is sealed is completed, whether its rows have ended or not",
    law: /done missing/,
    Server: batch((record) => (record.state === "sealed" ? { ...record, state: "completed" } : record)),
  },
  {
    name: "rowsOfBlocksLost",
    of: "batches",
    from: 1,
    what: "rows that are appended are not counted",
    law: /sums differ/,
    Server: batch((record, before) =>
      before && record.rows > before.rows ? { ...record, rows: before.rows } : record,
    ),
  },
];

function marksWithout(marks: string, before: string): string {
  return Array.from(marks, (mark, at) => (before[at] === "1" ? "0" : mark)).join("");
}
