// The part of the store port that collections need, offered as a property of the store. A collection has no owner: any process may call any of
// this at any time. Parts are unique by (collection, series, ordinal), and what is put is added to sums without a lock on the collection, so
// whether a collection is complete is looked for after the commit: two transactions do not see each other's last part. Where an audit entry is
// given, it is written in the transaction of the change, and only if something was changed.
import {
  type AnnounceAnswer,
  COLLECTION_STATES,
  type CollectionDraft,
  type CollectionRow,
  type CollectionState,
  type KnownPlace,
  type MissingOrdinals,
  type ParkedMessage,
  type ParkedRow,
  type Part,
  type PartPlace,
  type PutAnswer,
} from "../job/collections.ts";
import type { AuditEntry } from "../job/audit.ts";
import type { JobDraft } from "../job/job.ts";

export type { AnnounceAnswer };

/** The state of a collection as stores keep it: its place in COLLECTION_STATES. */
export const STATE_CODE = Object.fromEntries(COLLECTION_STATES.map((state, code) => [state, code])) as Readonly<
  Record<CollectionState, number>
>;

/** At most `limit` of the ranges that a store has found, which looks for one more to know whether there are. */
export function listedRanges(
  rows: readonly { readonly first: number; readonly last: number }[],
  limit: number,
): MissingOrdinals {
  const ranges = rows.slice(0, limit).map(({ first, last }) => [first, last] as const);
  return { ranges, cut: rows.length > limit };
}

/** Ordinals of a page whose parts SQL stores count: full pages are passed in a report of what is missing. */
export const PAGE_ORDINALS = 64;

export function pageOf(ordinal: number): number {
  return Math.floor((ordinal - 1) / PAGE_ORDINALS);
}

export interface Collections {
  /** One transaction: adds the collection and enqueues what follows, or returns the one that has the id. Resolves when durable. */
  open(draft: CollectionDraft): Promise<OpenedCollection>;

  /**
   * One transaction: says how many parts these series have. All of it or nothing: a series that is announced with another number, has a part
   * beyond it, or does not exist, refuses the whole. Repeating it changes nothing.
   */
  announce(id: string, expected: Readonly<Record<string, number>>): Promise<AnnounceAnswer>;

  /** What is known of these places, in their order; null: there is no such collection. Reads only. */
  known(places: readonly PartPlace[]): Promise<readonly (KnownPlace | null)[]>;

  /**
   * One transaction: keeps the rows of these parts, each by the rule of `answerPut`, and says in their order what became of them. An accepted
   * part moves a requested collection to collecting. Resolves when durable.
   */
  put(parts: readonly Part[]): Promise<readonly PutAnswer[]>;

  /** Collections as they are now, sums included, in the order of the ids; unknown ones are omitted. Reads only, takes no lock, and goes through no parts. */
  get(ids: readonly string[]): Promise<readonly CollectionRow[]>;

  /** A page of collections, the newest first. */
  list(filter: CollectionFilter, limit: number, after: string | null): Promise<readonly CollectionRow[]>;

  /** How many collections are in each state. States without any are omitted. */
  counts(): Promise<readonly CollectionCount[]>;

  /** Parts of a series from 1 to its number, by ordinal. */
  parts(id: string, series: string, afterOrdinal: number, limit: number): Promise<readonly Part[]>;

  /** What is missing of a series that is announced, up to its number; of another one up to its highest part. At most `limit` ranges. */
  missing(id: string, series: string, limit: number): Promise<MissingOrdinals>;

  /** Ids of open collections about which something may be decided: all parts may be there, or its time has passed. At most `limit`. With the store's clock. */
  due(limit: number): Promise<{ readonly ids: readonly string[]; readonly now: number }>;

  /**
   * One transaction: the collection's state becomes `to` if it is in one of `from`, and what follows is enqueued. For `complete` the set of ordinals
   * is counted and must be whole; with `ifDue` its time must still have passed. Returns whether it did: it is false for all but one of those who try.
   */
  step(step: CollectionStep, entry?: AuditEntry): Promise<boolean>;

  /** One transaction: keeps these parked messages. One that is there already is kept once. */
  park(messages: readonly ParkedMessage[]): Promise<void>;

  /** Parked messages, by id. `after`: the last id of the page before. */
  parked(filter: ParkedFilter, limit: number, after: string | null): Promise<readonly ParkedRow[]>;

  /** Forgets these parked messages. */
  unpark(ids: readonly string[], entry?: AuditEntry): Promise<void>;

  /** One small transaction: deletes rows of a collection that has ended, its parts first. Returns whether more is left. */
  remove(id: string, limit: number): Promise<boolean>;
}

export interface OpenedCollection {
  readonly created: boolean;
  readonly collection: CollectionRow;
}

export interface CollectionFilter {
  readonly kind?: string;
  readonly state?: CollectionState;
}

/** How many collections of a kind are in a state. */
export interface CollectionCount {
  /** The kind's name. */
  readonly kind: string;
  /** The state. */
  readonly state: CollectionState;
  /** How many. */
  readonly count: number;
}

export interface CollectionStep {
  readonly collection: string;
  readonly from: readonly CollectionState[];
  readonly to: Exclude<CollectionState, "requested">;
  /** Kept with the collection. Null: nothing to say. */
  readonly why: string | null;
  readonly ifDue?: true;
  readonly follow: readonly JobDraft[];
}

export interface ParkedFilter {
  readonly kind?: string;
  readonly collection?: string;
}
