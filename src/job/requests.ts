// What the domain knows of requests: HTTP calls that run as jobs. Whether one was sent is a fact that survives its process only as a mark, a step that
// is durable before the first byte goes. Pure: the marks by name, and what recovery decides about a request whose worker died.
import type { Counters, KindSettings, StoredStep } from "./job.ts";

/** What to do with a request that was sent and whose outcome is unknown: resend it, ask `onUnknown`, or fail it. */
export type IfUnknown = "resend" | "ask" | "fail";

/**
 * What recovery reports about a request. resend: it may have been sent, and is sent again. unsent: its mark says that it had not been sent. ask, unknown: it was
 * sent, and is asked about or fails; the next attempt writes that, because only a program has what is asked.
 */
export type RequestDecision = "resend" | "unsent" | "ask" | "unknown";

/** The crash actions of requests: without a mark (`ifUnknown: "resend"`) and with one. */
export const REQUEST_ACTIONS = { resend: "resend", marked: "marked" } as const;

export function isRequestKind({ onCrash }: Pick<KindSettings, "onCrash">): boolean {
  return onCrash === "resend" || onCrash === "marked";
}

/**
 * A request runs almost no user code, and thousands of them die with one process: from the second death on most would wait for each other for days
 * (5,000 of 5 minutes: 1 was in flight 25 s after the second kill). Its first deaths count as interruptions, and it is a suspect from the sixth crash on.
 */
const UNCOUNTED_DEATHS = 5;

export function isUncountedDeath({ interruptions }: Counters, kind: Pick<KindSettings, "onCrash">): boolean {
  return isRequestKind(kind) && interruptions < UNCOUNTED_DEATHS;
}

// ---- marks

/** Written before the first byte of attempt `fence` goes. */
export function sentMark(policy: Exclude<IfUnknown, "resend">, fence: number): string {
  return `sent(${policy})#${fence}`;
}

/** Written when the outcome of that attempt is known, or was decided, and another one may be sent. */
export function knownMark(fence: number): string {
  return `known#${fence}`;
}

const SENT = /^sent\((ask|fail)\)#(\d+)$/;

/** The attempt that was sent and whose outcome is unknown; null: there is none. */
export function unknownSending(steps: readonly StoredStep[]): number | null {
  const names = new Set(steps.map(({ name }) => name));
  for (const { name } of steps.toReversed()) {
    const fence = SENT.exec(name)?.[2];
    if (fence !== undefined && !names.has(knownMark(Number(fence)))) return Number(fence);
  }
  return null;
}

/** By the mark that the store has of the attempt that died. */
export function decisionAfterDeath(
  { onCrash }: Pick<KindSettings, "onCrash">,
  lastStep: string | null,
  fence: number,
): RequestDecision {
  if (onCrash === "resend") return "resend";
  const [, policy, sent] = SENT.exec(lastStep ?? "") ?? [];
  if (sent === undefined || Number(sent) !== fence) return "unsent";
  return policy === "ask" ? "ask" : "unknown";
}

/** Headers of an answer whose values people are shown. All others may hold a token, a cookie or a name. */
const SHOWN_HEADERS = [
  "age",
  "cache-control",
  "content-encoding",
  "content-length",
  "content-type",
  "date",
  "retry-after",
  "server",
  "x-request-id",
];

/** The input of a callback as people are shown it: the values of headers by allow-list. Any other input as it is. */
export function shownInput(kind: string, input: unknown): unknown {
  if (!kind.endsWith(".response") || typeof input !== "object" || input === null || Array.isArray(input)) return input;
  const { headers, requestId } = input as { readonly [name: string]: unknown };
  if (typeof requestId !== "string" || typeof headers !== "object" || headers === null || Array.isArray(headers))
    return input;
  const shown = Object.entries(headers).map(([name, value]) => [name, SHOWN_HEADERS.includes(name) ? value : "..."]);
  return { ...input, headers: Object.fromEntries(shown) };
}
