// What is kept of every change that a person makes: who, what, why, and to how many. The store writes it in the transaction of the change itself, so
// an entry without its change, or a change without its entry, can't be.
import { assertKey } from "./enqueue.ts";

/** An entry on its way into the store. A bulk change writes the same entry with every chunk, and the store adds up how many jobs were changed. */
export interface AuditEntry {
  /** The entry's id. */
  readonly id: string;
  /** Who did it: "ann", "cli/ann@host". */
  readonly actor: string;
  /** What was done. */
  readonly action: AuditAction;
  /** What it was done to: "job ID", "kind NAME", "key KEY of limit NAME", "schedule NAME", "batch ID", "collection ID", "parked message ID", or the filter of a bulk change. */
  readonly target: string;
  /** Null: none was given. */
  readonly reason: string | null;
}

/** The sorts of changes that the audit has. */
export const AUDIT_ACTIONS = [
  "cancel",
  "retry",
  "edit",
  "promote",
  "remove",
  "pause",
  "resume",
  "limit",
  "signal",
  "schedule",
  "run",
  "backfill",
  "submit",
  "seal",
  "abort",
  "abandon",
] as const;
/** What a person can change. */
export type AuditAction = (typeof AUDIT_ACTIONS)[number];

/** An entry of the audit. */
export interface AuditRecord extends AuditEntry {
  /** When the change, or the first chunk of a bulk change, was written, in milliseconds since 1970 by the store's clock. */
  readonly at: number;
  /** How many jobs, kinds, keys, schedules, batches, collections or messages were changed; of a run and a backfill, how many jobs were enqueued. */
  readonly count: number;
}

export interface AuditQuery {
  /** Only of this actor, action or job. */
  readonly actor?: string;
  readonly action?: AuditAction;
  readonly target?: string;
  /** At most this many, the newest first. */
  readonly limit: number;
  /** Only entries older than the one with this id. */
  readonly after?: string;
}

/** At most this many entries are kept; the oldest go first. They also go with the retention of incidents. */
export const MAX_AUDIT = 100_000;

/** Who changes something, and why. */
export interface By {
  /** Who does it, for the audit and the history of the job. Default "operator". 1 to 255 characters. */
  readonly actor?: string;
  /** Why, for the audit. Default: none. 1 to 255 characters. */
  readonly reason?: string;
}

export function auditEntry(id: string, action: AuditAction, target: string, { actor, reason }: By): AuditEntry {
  if (actor !== undefined) assertKey(actor, `The actor of a ${action}`);
  if (reason !== undefined) assertKey(reason, `The reason of a ${action}`);
  return { id, actor: actor ?? "operator", action, target, reason: reason ?? null };
}
