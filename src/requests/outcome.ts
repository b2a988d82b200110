// What becomes of a request, by what came back. Pure: every case is a line of a table in its test. The policy `ifUnknown` decides where nobody can know
// whether the other side acted; everything else follows from what HTTP says about the answer.
import type { IfUnknown } from "../job/requests.ts";
import type { RequestFault } from "./contract.ts";

/** How one sending ended. */
export type Came =
  /** A whole answer. */
  | { readonly is: "answer"; readonly status: number; readonly accepted: boolean; readonly retryAfterMs: number | null }
  /** No byte of the request went out: no address, no connection, no secret. */
  | { readonly is: "unsent"; readonly fault: "network" | "timeout" | "refused"; readonly message: string }
  /** It went out, and no whole answer came. */
  | { readonly is: "cut"; readonly fault: "network" | "timeout"; readonly message: string }
  /** It can't be sent as it is, or its answer can't be taken: sending it again changes nothing. */
  | {
      readonly is: "refused";
      readonly fault: "refused" | "too-large" | "schema" | "disabled";
      readonly message: string;
    };

export type Decision =
  | { readonly then: "respond" }
  /** Another attempt, after the backoff or after this long. `holdOffMs`: nothing else of its key starts meanwhile. */
  | {
      readonly then: "retry";
      readonly fault: RequestFault;
      readonly waitMs: number | null;
      readonly holdOffMs: number | null;
    }
  | { readonly then: "fail"; readonly fault: RequestFault }
  /** It may have been acted on: asked about, or failed, as its kind says. */
  | { readonly then: "unknown" };

export interface RetryPolicy {
  /** Statuses that are retried in addition to those that HTTP says may be. */
  readonly statuses: readonly number[];
  /** The delay after each failure, in order; null: the backoff of the kind. */
  readonly scheduleMs: readonly number[] | null;
  /** So long after its first failure it is given up; null: never. */
  readonly giveUpAfterMs: number | null;
}

/** The server had not begun: any method may be sent again. */
const NOT_BEGUN = [425, 429, 503];
/** A gateway had forwarded it, and knows no more. */
const FORWARDED = [502, 504];
/** An answer that says nothing about what was done before it: sent again only where that does no harm. */
const TRY_AGAIN = [408, 500, 507];

export function decide(
  came: Came,
  ifUnknown: IfUnknown,
  { statuses }: Pick<RetryPolicy, "statuses">,
  hasIdempotencyKey: boolean,
): Decision {
  switch (came.is) {
    case "refused":
      return { then: "fail", fault: came.fault };
    case "unsent":
      return { then: "retry", fault: came.fault, waitMs: null, holdOffMs: null };
    case "cut":
      return ifUnknown === "resend"
        ? { then: "retry", fault: came.fault, waitMs: null, holdOffMs: null }
        : { then: "unknown" };
    case "answer": {
      const { status, accepted, retryAfterMs } = came;
      if (accepted) return { then: "respond" };
      const again = { then: "retry", fault: "status", waitMs: retryAfterMs, holdOffMs: null } as const;
      if (NOT_BEGUN.includes(status)) return { ...again, holdOffMs: retryAfterMs };
      if (FORWARDED.includes(status)) return ifUnknown === "resend" ? again : { then: "unknown" };
      // The first one with this key is still being worked on.
      if (status === 409 && hasIdempotencyKey) return again;
      if (statuses.includes(status)) return again;
      if (ifUnknown === "resend" && TRY_AGAIN.includes(status)) return again;
      return { then: "fail", fault: "status" };
    }
  }
}

/** At most this long is waited because the other side asks for it. */
export const MAX_RETRY_AFTER_MS = 86_400_000;

/** The header `retry-after`: seconds, or a date, compared with the `date` of the same answer. Null: there is none, or it says nothing. */
export function retryAfterMs(header: string | undefined, date: string | undefined, now: number): number | null {
  if (header === undefined) return null;
  const text = header.trim();
  const seconds = /^\d{1,9}$/.test(text) ? Number(text) : null;
  if (seconds !== null) return Math.min(seconds * 1_000, MAX_RETRY_AFTER_MS);
  const at = Date.parse(text);
  if (!Number.isFinite(at)) return null;
  const sent = date === undefined ? Number.NaN : Date.parse(date);
  return Math.min(Math.max(0, at - (Number.isFinite(sent) ? sent : now)), MAX_RETRY_AFTER_MS);
}
