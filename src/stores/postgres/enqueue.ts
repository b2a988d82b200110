// The way in: the table of kinds and the jobs that are enqueued, one statement for any number of them. A job whose id or dedupe key is
// known already adds nothing.
import { undeclaredKind } from "../../job/errors.ts";
import type { Enqueued, JobDraft, KindSettings } from "../../job/job.ts";
import type { Clock } from "../../job/time.ts";
import type { Change } from "../../job/transitions.ts";
import { type KindColumns, kindSettings, LANE, toStored } from "../rows.ts";
import { type Connection, OutcomeUnknown } from "./connection.ts";
import { apply, defer, type Holder } from "./dedupe.ts";
import { endedBefore, sqlState } from "./errors.ts";
import { foldKeyWakes } from "./keys.ts";
import {
  checksumOf,
  inputHashSql,
  list,
  MAX_CHARACTERS,
  type Session,
  texts,
  type TransactingSession,
} from "./statements.ts";

const DRAFTS = "$1::int[], $2::int[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[]";
/** Returns the ids that were added, or null if all of them were. */
const ADD = `SELECT outlive.add_jobs(${DRAFTS}) AS added`;
/** No row, and nothing is added, if the numbers of the kinds are not theirs any more: after a restore they may be those of others. */
const IF_KNOWN = `WHERE (SELECT count(*) FROM outlive.kinds k JOIN unnest($8::int[], $9::text[]) AS u (id, name) ON k.id = u.id AND k.name = u.name)
  = cardinality($8::int[])`;
const ADD_ONLY = `${ADD} ${IF_KNOWN}`;
/** Many jobs of one kind that ask for nothing. */
const ADD_PLAIN = `SELECT outlive.add_plain_jobs($1::int, $2::text[], $3::text[]) AS added WHERE (SELECT k.name FROM outlive.kinds k WHERE k.id = $1::int) = $4`;
/** The same in a transaction that fails if an id is known. Their checksums are made here: that costs 0.4 us for each, and the server 0.9. */
const ADD_BULK = `WITH d AS MATERIALIZED (
    SELECT nextval('outlive.jobs_seq_seq') AS seq, u.id, u.input, u.at::int AS at FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u (id, input, at)
    WHERE (SELECT k.name FROM outlive.kinds k WHERE k.id = $1::int) = $4),
  ids AS (INSERT INTO outlive.job_ids (id, seq) SELECT id, seq FROM d),
  delta AS (INSERT INTO outlive.kind_deltas (kind, jobs) SELECT $1::int, cardinality($2::text[]) WHERE EXISTS (SELECT 1 FROM d))
  INSERT INTO outlive.jobs (seq, lane, kind, priority, created_at, id, input, input_sum, input_hash) OVERRIDING SYSTEM VALUE
  SELECT d.seq, ${LANE.open}, $1::int, 0, (SELECT outlive.now_ms()), d.id, d.input, substr($5::bytea, 4 * d.at - 3, 4), ${inputHashSql("d.input", "d.id")} FROM d`;
const ADD_BLOCKS = `SELECT outlive.add_block_jobs(${DRAFTS}) AS added ${IF_KNOWN}`;
const ADD_CHILDREN = `SELECT outlive.add_children(${DRAFTS}, $10) AS added ${IF_KNOWN}`;
/** The same, and it wakes workers when the transaction commits: once, however often one transaction asks for it. */
const ADD_AND_RING = `${ADD}, pg_notify($10, '') ${IF_KNOWN}`;
/** The same for jobs with keys, and debounced jobs. */
const HELD = `SELECT outlive.add_held_jobs(${DRAFTS}, $10::bigint, $11::bigint[], $12::bigint[], $13::bigint[], $14::text[], $15::bigint[]) AS added`;
/** The same for jobs of fair kinds. */
const FAIR = `SELECT outlive.add_held_jobs(${DRAFTS}, $10::bigint, $11::bigint[], $12::bigint[], $13::bigint[], $14::text[], $15::bigint[], $16::bigint[]) AS added`;
/** The same, if some of them expire. */
const EXPIRING = FAIR.replace("add_held_jobs", "add_expiring_jobs").replace(
  "$16::bigint[]",
  "$16::bigint[], $17::bigint[]",
);
const ADD_EXPIRING = `${EXPIRING} ${IF_KNOWN}`;
const ADD_EXPIRING_AND_RING = `${EXPIRING}, pg_notify($18, '') ${IF_KNOWN}`;
const ADD_FAIR = `${FAIR} ${IF_KNOWN}`;
const ADD_FAIR_AND_RING = `${FAIR}, pg_notify($17, '') ${IF_KNOWN}`;
const ADD_HELD = `${HELD} ${IF_KNOWN}`;
const ADD_HELD_AND_RING = `${HELD}, pg_notify($16, '') ${IF_KNOWN}`;

/** Ahead of any of these statements, with its values last: the trace contexts of the drafts that have one, in the same transaction. */
const tracedText = (statement: string, first: number): string =>
  `WITH traced AS (INSERT INTO outlive.traces (job, trace) SELECT u.job, u.trace FROM unnest($${first}::text[], $${first + 1}::text[]) AS u (job, trace)
    WHERE NOT EXISTS (SELECT 1 FROM outlive.job_ids i WHERE i.id = u.job) ON CONFLICT DO NOTHING) ${statement}`;

export interface EnqueuedWith {
  /** The row of the job that enqueues them. */
  readonly parent?: number;
  /** They are blocks of rows, whose own rows the caller adds. */
  readonly areBlocks?: boolean;
  /** The channel on which workers listen; they are woken by the commit. */
  readonly wakeup?: string;
  /** In an open transaction of the user's: no job's row may be locked. */
  readonly ofUser?: boolean;
  /** They are in a transaction of their own. */
  readonly areAlone?: boolean;
  /** Most of them are known already: it is asked before they are added. */
  readonly looksFirst?: boolean;
  /** Makes a short transaction. Omitted: the session is in one. */
  readonly within?: (work: (tx: Session) => Promise<Enqueued | null>) => Promise<Enqueued | null>;
}

/** The kinds must be known (`Kinds.demand`). */
export async function insertJobs(
  session: Session,
  kinds: Kinds,
  drafts: readonly JobDraft[],
  more: EnqueuedWith = {},
): Promise<Enqueued[]> {
  const seen = more.looksFirst ? await knownOf(session, kinds, drafts) : NONE_KNOWN;
  const unseen = seen.size === 0 ? drafts : drafts.filter((_, at) => !seen.has(at));
  const added = unseen.length === 0 ? null : await insert(session, kinds, unseen, more);
  if (added === null && seen.size === 0) return drafts.map(({ id }) => ({ id, created: true }));
  const fresh = new Set(added ?? unseen.map(({ id }) => id));
  // An id that is in the call twice was added by the first.
  const enqueued = drafts.map(({ id }, at): Enqueued | null =>
    !seen.has(at) && fresh.delete(id) ? { id, created: true } : null,
  );
  const late = drafts.filter((_, at) => enqueued[at] === null && !seen.has(at));
  const known = await knownOf(session, kinds, late);
  const own = new Set<string>();
  let count = 0;
  for (const [at, draft] of drafts.entries()) {
    // What was looked for first was looked for before the jobs in front of it were added.
    if (seen.has(at) && own.has(draft.id)) enqueued[at] = { id: draft.id, created: false };
    enqueued[at] ??= await presentOf(session, kinds, draft, more, seen.get(at) ?? known.get(count++));
    if (enqueued[at].created) own.add(draft.id);
  }
  return enqueued as Enqueued[];
}

const NONE_KNOWN: ReadonlyMap<number, Known> = new Map();

/** Enqueues what follows from changes that this transaction has applied. Most have nothing that follows, and then nothing is sent. */
export async function insertFollowing(session: Session, kinds: Kinds, applied: Iterable<Change>): Promise<void> {
  const drafts = [...applied].flatMap(({ follow }) => follow ?? []);
  if (drafts.length > 0) await insertJobs(session, kinds, drafts);
}

async function insert(
  session: Session,
  kinds: Kinds,
  drafts: readonly JobDraft[],
  more: EnqueuedWith,
): Promise<readonly string[] | null> {
  const names = [...new Set(drafts.map(({ kind }) => kind))];
  const { parent, wakeup } = more;
  const expires = drafts.some(({ expiresMs }) => expiresMs !== undefined);
  const isHeld = expires || drafts.some(({ keys, dedupe }) => keys !== undefined || hasBound(dedupe));
  const isFair = expires || drafts.some(({ fair }) => fair !== undefined);
  const statement = expires
    ? wakeup === undefined
      ? ADD_EXPIRING
      : ADD_EXPIRING_AND_RING
    : statementFor(more, isHeld, isFair);
  for (;;) {
    await kinds.demand(session, names);
    if (names.length === 1 && more.areAlone && drafts.every(isPlain)) {
      const ids = texts(drafts.map(({ id }) => id));
      const inputs = texts(drafts.map(({ input }) => input));
      const [row] = await session.rows<Added>(ADD_PLAIN, [kinds.idOf(names[0]!)!, ids, inputs, names[0]!]);
      if (row) return row.added;
      kinds.forget(names);
      continue;
    }
    const values = [
      list(drafts.map(({ kind }) => kinds.idOf(kind)!)),
      list(drafts.map(({ priority }) => priority)),
      list(drafts.map(({ runAt, dedupe }) => (dedupe?.debounce ? null : runAt))),
      list(drafts.map(({ delayMs, dedupe }) => dedupe?.debounce?.waitMs ?? delayMs)),
      texts(drafts.map(({ id }) => id)),
      texts(drafts.map(({ dedupeKey }) => dedupeKey)),
      texts(drafts.map(({ input }) => input)),
      list(names.map((name) => kinds.idOf(name)!)),
      texts(names),
      ...(isHeld ? [parent ?? null, ...heldValues(drafts)] : parent === undefined ? [] : [parent]),
      ...(isFair ? [list(drafts.map(({ fair }) => fair ?? null))] : []),
      ...(expires ? [list(drafts.map(({ expiresMs }) => expiresMs ?? null))] : []),
      ...(wakeup === undefined ? [] : [wakeup]),
    ];
    let text = statement;
    const traced = drafts.filter(({ trace }) => trace !== undefined);
    if (traced.length > 0) {
      text = tracedText(text, values.length + 1);
      values.push(texts(traced.map(({ id }) => id)), texts(traced.map(({ trace }) => trace!)));
    }
    const [row] = await session.rows<Added>(text, values);
    if (row) return row.added;
    kinds.forget(names);
  }
}

/** Many plain jobs of one kind as parameters, made while the server is busy with those before. */
interface Bulk {
  readonly kind: string;
  readonly ids: string;
  readonly inputs: string;
  readonly sums: string;
}

/** For fewer, two more messages cost more than the flush of a commit. */
const BULK_FROM = 500;

function bulkOf(drafts: readonly JobDraft[]): Bulk | null {
  const { kind } = drafts[0]!;
  if (drafts.length < BULK_FROM || !drafts.every((draft) => draft.kind === kind && isPlain(draft))) return null;
  return {
    kind,
    ids: texts(drafts.map(({ id }) => id)),
    inputs: texts(drafts.map(({ input }) => input)),
    sums: drafts.reduce((text, { id, input }) => text + checksumOf(input, id), "\\x"),
  };
}

async function insertBulk(session: Session, kinds: Kinds, { kind, ids, inputs, sums }: Bulk): Promise<void> {
  for (;;) {
    await kinds.demand(session, [kind]);
    if ((await session.run(ADD_BULK, [kinds.idOf(kind)!, ids, inputs, kind, sums])) > 0) return;
    kinds.forget([kind]);
  }
}

interface Added {
  readonly added: readonly string[] | null;
}

function isPlain({ priority, runAt, delayMs, dedupeKey, keys, expiresMs, trace }: JobDraft): boolean {
  const isAtOnce = priority === 0 && runAt === null && delayMs === 0;
  return isAtOnce && dedupeKey === null && keys === undefined && expiresMs === undefined && trace === undefined;
}

function hasBound(dedupe: JobDraft["dedupe"]): boolean {
  return dedupe?.debounce !== undefined && dedupe.debounce.maxMs !== null;
}

function heldValues(drafts: readonly JobDraft[]): string[] {
  const key = (at: number): string => list(drafts.map(({ keys }) => keys?.[at]?.id ?? null));
  const names = drafts.map(({ keys }) => keys && JSON.stringify(keys.map(({ limit, key: own }) => [limit, own])));
  const bounds = drafts.map(({ dedupe }) => dedupe?.debounce?.maxMs ?? null);
  return [key(0), key(1), key(2), texts(names.map((name) => name ?? null)), list(bounds)];
}

function statementFor({ parent, wakeup, areBlocks }: EnqueuedWith, isHeld: boolean, isFair: boolean): string {
  if (isFair) return wakeup === undefined ? ADD_FAIR : ADD_FAIR_AND_RING;
  if (isHeld) return wakeup === undefined ? ADD_HELD : ADD_HELD_AND_RING;
  if (areBlocks) return ADD_BLOCKS;
  if (parent !== undefined) return ADD_CHILDREN;
  return wakeup === undefined ? ADD_ONLY : ADD_AND_RING;
}

/** The job that has the id, or else the unfinished one that holds the key. A list in each, so that the server asks its indexes for one row after the other. */
const KNOWN = `SELECT u.at::int AS at, coalesce(i.id, j.id) AS id, CASE WHEN i.id IS NULL THEN j.seq END AS seq, j.state, j.fence
  FROM unnest($1::text[], $2::int[], $3::text[]) WITH ORDINALITY AS u (id, kind, key, at)
  LEFT JOIN LATERAL (SELECT id FROM outlive.job_ids WHERE id = u.id LIMIT 1) i ON true
  LEFT JOIN LATERAL (SELECT id, seq, state, fence FROM outlive.jobs WHERE kind = u.kind AND dedupe_key = u.key AND dedupe_key IS NOT NULL AND state < 2 LIMIT 1) j ON true
  WHERE i.id IS NOT NULL OR j.id IS NOT NULL`;

type Known = Holder | { readonly id: string; readonly seq: null };

/** By their places among the drafts. One statement for all of them: with one for each, 50,000 duplicates came in at a tenth of the rate of new jobs. */
async function knownOf(session: Session, kinds: Kinds, drafts: readonly JobDraft[]): Promise<Map<number, Known>> {
  if (drafts.length === 0) return new Map();
  const rows = await session.rows<Known & { readonly at: number }>(KNOWN, [
    texts(drafts.map(({ id }) => id)),
    list(drafts.map(({ kind }) => kinds.idOf(kind)!)),
    texts(drafts.map(({ dedupeKey }) => dedupeKey)),
  ]);
  return new Map(rows.map(({ at, ...known }) => [at - 1, known]));
}

/** The id is known already, or an unfinished job holds the key. If that has ended since, the key is free. */
async function presentOf(
  session: Session,
  kinds: Kinds,
  draft: JobDraft,
  more: EnqueuedWith,
  first: Known | undefined,
): Promise<Enqueued> {
  const { ofUser = false, within = (work) => work(session) } = more;
  for (let known = first; ; known = (await knownOf(session, kinds, [draft])).get(0)) {
    if (known && (known.seq === null || draft.dedupe === undefined)) return { id: known.id, created: false };
    if (known) {
      const holder = known;
      const enqueued = ofUser ? await defer(session, holder, draft) : await within((tx) => apply(tx, holder, draft));
      if (enqueued !== null) return enqueued;
    }
    if ((await insert(session, kinds, [draft], more)) === null) return { id: draft.id, created: true };
  }
}

/** At most this many jobs in one statement, and at most `MAX_CHARACTERS` of their inputs. */
const MOST = 10_000;

const UNIQUE_VIOLATION = "23505";

interface Waiting {
  readonly drafts: readonly JobDraft[];
  /** Of all inputs. */
  readonly characters: number;
  /** Null: others may share its statement. */
  readonly bulk: Bulk | null;
  /** What it is a batch of. */
  readonly call: object | undefined;
  readonly resolve: (enqueued: readonly Enqueued[]) => void;
  readonly reject: (thrown: unknown) => void;
}

/** After this many groups with keys their wakes are counted, and folded if no worker takes them. */
const FOLDS_EVERY = 100;

type BulkSession = TransactingSession & Pick<Connection, "behind">;

/** Group commit: all enqueues of one turn of the event loop are one statement, and while it is under way the next ones gather. */
export class Enqueuing {
  readonly #session: BulkSession;
  readonly #kinds: Kinds;
  readonly #clock: Pick<Clock, "soon">;
  readonly #more: EnqueuedWith;
  #waiting: Waiting[] = [];
  #busy = false;
  /** Calls that look up their kinds; null: there are none. */
  #learning: Promise<void> | null = null;
  /** Of the latest call in bulk. They never reject. */
  #inserted: Promise<void> = Promise.resolve();
  #committed: Promise<void> = Promise.resolve();
  /** Calls of which a batch was not stored, and why: those after it are not either. */
  readonly #failed = new WeakMap<object, unknown>();
  /** How many groups had jobs with keys since their wakes were counted. */
  #keyedGroups = 0;
  /** Whether most jobs with a dedupe key were duplicates in the latest group that had any. Adding each of them, and removing its id again, costs three times what looking for it does. */
  #areDuplicates = false;
  groupCount = 0;
  operationCount = 0;

  constructor(session: BulkSession, kinds: Kinds, clock: Pick<Clock, "soon">) {
    this.#session = session;
    this.#more = { areAlone: true, within: (work) => session.transaction(work) };
    this.#kinds = kinds;
    this.#clock = clock;
  }

  async enqueue(drafts: readonly JobDraft[], call?: object): Promise<readonly Enqueued[]> {
    if (drafts.length === 0) return [];
    if (this.#learning || drafts.some(({ kind }) => this.#kinds.idOf(kind) === undefined))
      await this.#learn(drafts).catch((thrown: unknown) => {
        this.#note(call, thrown);
        throw thrown;
      });
    const characters = drafts.reduce((sum, { input }) => sum + input.length, 0);
    const bulk = bulkOf(drafts);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ drafts, characters, bulk, call, resolve, reject });
      if (this.#busy) return;
      this.#busy = true;
      this.#clock.soon(() => void this.#flush());
    });
  }

  /** One call after the other, so that they keep their order. */
  #learn(drafts: readonly JobDraft[]): Promise<void> {
    const kinds = new Set(drafts.map(({ kind }) => kind));
    const learnt = (this.#learning ?? Promise.resolve()).then(() => this.#kinds.demand(this.#session, kinds));
    const ended = learnt
      .catch(() => undefined)
      .then(() => {
        if (this.#learning === ended) this.#learning = null;
      });
    this.#learning = ended;
    return learnt;
  }

  async #flush(): Promise<void> {
    while (this.#waiting.length > 0) {
      const [first] = this.#waiting;
      if (first!.bulk) await this.#writeBulk(this.#waiting.shift()!, first!.bulk);
      else {
        await this.#committed;
        await this.#write(this.#next());
      }
      // No caller waits for it, and a store that is gone is reported by the next call.
      if (this.#keyedGroups >= FOLDS_EVERY) await this.#fold().catch(() => undefined);
    }
    this.#busy = false;
  }

  async #fold(): Promise<void> {
    this.#keyedGroups = 0;
    await foldKeyWakes(this.#session);
  }

  #next(): Waiting[] {
    let count = 0;
    let length = 0;
    const end = this.#waiting.findIndex(({ drafts, characters, bulk }) => {
      count += drafts.length;
      length += characters;
      return bulk !== null || count > MOST || length > MAX_CHARACTERS;
    });
    return this.#waiting.splice(0, end === -1 ? this.#waiting.length : Math.max(1, end));
  }

  /**
   * While the commit of one batch is flushed, the next one is inserted in another session. Numbers and commits are in the order of the batches, and none is stored
   * behind one of the same call that was not. Resolves when the one before has been committed, so that these are two sessions and never three.
   */
  async #writeBulk(batch: Waiting, bulk: Bulk): Promise<void> {
    this.groupCount++;
    this.operationCount++;
    await this.#inserted;
    if (this.#isFailed(batch)) return this.#write([batch]);
    const former = this.#committed;
    const ready = former.then(() => {
      if (this.#isFailed(batch)) throw new Error("the batch before it was not stored");
    });
    const { worked, committed } = this.#session.behind(ready, (tx) => insertBulk(tx, this.#kinds, bulk));
    const settled = committed.then(
      () => batch.resolve(batch.drafts.map(({ id }) => ({ id, created: true }))),
      async (thrown: unknown) => {
        await former;
        const cause = thrown instanceof OutcomeUnknown ? thrown.cause : thrown;
        if (this.#isFailed(batch) || sqlState(cause) === UNIQUE_VIOLATION || endedBefore(cause))
          await this.#write([batch]);
        else this.#fail(batch, cause);
      },
    );
    this.#committed = settled;
    this.#inserted = worked.catch(() => settled);
    await former;
  }

  async #write(all: readonly Waiting[]): Promise<void> {
    const group = all.filter((batch) => !this.#isFailed(batch));
    for (const batch of all) if (this.#isFailed(batch)) this.#fail(batch, this.#failed.get(batch.call!));
    if (group.length === 0) return;
    this.groupCount++;
    this.operationCount += group.length;
    try {
      const drafts = group.length === 1 ? group[0]!.drafts : group.flatMap((waiting) => waiting.drafts);
      const isKeyed = drafts.some(({ dedupeKey }) => dedupeKey !== null);
      const more = isKeyed && this.#areDuplicates ? { ...this.#more, looksFirst: true } : this.#more;
      const enqueued = await insertJobs(this.#session, this.#kinds, drafts, more);
      if (isKeyed) this.#areDuplicates = enqueued.filter(({ created }) => !created).length * 2 > enqueued.length;
      if (drafts.some(({ keys }) => keys !== undefined)) this.#keyedGroups++;
      let from = 0;
      for (const { drafts: own, resolve } of group) resolve(enqueued.slice(from, (from += own.length)));
    } catch (thrown) {
      // A value that PostgreSQL does not take fails its own call only.
      if (group.length > 1 && sqlState(thrown)?.startsWith("22"))
        for (const waiting of group) await this.#write([waiting]);
      else for (const batch of group) this.#fail(batch, thrown);
    }
  }

  #isFailed({ call }: Waiting): boolean {
    return call !== undefined && this.#failed.has(call);
  }

  #fail({ call, reject }: Waiting, thrown: unknown): void {
    this.#note(call, thrown);
    reject(thrown);
  }

  #note(call: object | undefined, thrown: unknown): void {
    if (call) this.#failed.set(call, thrown);
  }
}

// The table of kinds: settings that every process and every decision reads, and the numbers that stand for the names.

const COLUMNS =
  "name, timeout_ms, max_runtime_ms, grace_ms, max_errors, max_timeouts, max_crashes, backoff_type, backoff_base_ms, backoff_max_ms, backoff_jitter, on_crash, keyed, fair, retention";

/** A kind that was fair once may still have jobs at its gate. */
const DECLARED = COLUMNS.replaceAll(/\w+/g, "excluded.$&").replace("excluded.fair", "kinds.fair OR excluded.fair");

const DECLARE = `INSERT INTO outlive.kinds (${COLUMNS})
  SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::int[], $6::int[], $7::int[], $8::text[], $9::bigint[], $10::bigint[],
    $11::float8[], $12::text[], $13::boolean[], $14::boolean[], $15::text[]) AS k (${COLUMNS}) ORDER BY name
  ON CONFLICT (name) DO UPDATE SET (${COLUMNS}) = ROW (${DECLARED})
  WHERE ROW (${COLUMNS.replaceAll(/\w+/g, "kinds.$&")}) IS DISTINCT FROM ROW (${DECLARED})`;

export const NOT_PAUSED =
  "paused = false, paused_at = NULL, paused_until = NULL, paused_by = NULL, paused_reason = NULL";

export class Kinds {
  readonly #ids = new Map<string, number>();
  /** Changes whenever a number may have. */
  version = 0;
  readonly #fair = new Set<string>();

  async declare(session: Session, kinds: readonly KindSettings[]): Promise<void> {
    // One statement may not touch a row twice: of a name that is given twice the last counts.
    const last = [...new Map(kinds.map((kind) => [kind.name, kind])).values()];
    this.forget(last.map(({ name }) => name));
    await session.run(DECLARE, [
      texts(last.map(({ name }) => name)),
      list(last.map(({ timeoutMs }) => timeoutMs)),
      list(last.map(({ maxRuntimeMs }) => maxRuntimeMs)),
      list(last.map(({ graceMs }) => graceMs)),
      list(last.map(({ limits }) => limits.errors)),
      list(last.map(({ limits }) => limits.timeouts)),
      list(last.map(({ limits }) => limits.crashes)),
      texts(last.map(({ backoff }) => backoff.type)),
      list(last.map(({ backoff }) => backoff.baseMs)),
      list(last.map(({ backoff }) => backoff.maxMs)),
      list(last.map(({ backoff }) => backoff.jitter)),
      texts(last.map(({ onCrash }) => toStored(onCrash))),
      list(last.map(({ keyed = [] }) => keyed.length > 0)),
      list(last.map(({ fair = false }) => fair)),
      texts(last.map(({ retention }) => (retention === undefined ? null : JSON.stringify(retention)))),
    ]);
  }

  /** The number of a declared kind, if it has been looked up. */
  idOf(name: string): number | undefined {
    return this.#ids.get(name);
  }

  /** Whether its jobs may wait at its gate, if it has been looked up. */
  isFair(name: string): boolean {
    return this.#fair.has(name);
  }

  /** Their numbers are looked up again: a restore may have given them to other kinds. */
  forget(names: Iterable<string>): void {
    for (const name of names) this.#ids.delete(name);
    this.version++;
  }

  /** Looks up what is not known yet. A kind that no program has declared stays unknown, and is asked for again next time. */
  async learn(session: Session, names: Iterable<string>): Promise<void> {
    const unknown = [...new Set(names)].filter((name) => !this.#ids.has(name));
    if (unknown.length === 0) return;
    const rows = await session.rows<{ id: number; name: string; fair: boolean }>(
      "SELECT id, name, fair FROM outlive.kinds WHERE name = ANY ($1::text[])",
      [texts(unknown)],
    );
    for (const { id, name, fair } of rows) {
      this.#ids.set(name, id);
      if (fair) this.#fair.add(name);
    }
  }

  /** As `learn`, but a kind that no program has declared is refused. */
  async demand(session: Session, names: Iterable<string>): Promise<void> {
    const all = [...names];
    await this.learn(session, all);
    const unknown = all.find((name) => !this.#ids.has(name));
    if (unknown !== undefined) throw undeclaredKind(unknown);
  }

  async settings(session: Session, ids: Iterable<number>): Promise<ReadonlyMap<number, KindSettings>> {
    const rows = await session.rows<KindColumns>("SELECT * FROM outlive.kinds WHERE id = ANY ($1::int[])", [
      list([...new Set(ids)]),
    ]);
    return new Map(rows.map((row) => [row.id, kindSettings(row)]));
  }
}
