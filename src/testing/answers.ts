// Canned answers in place of the network, for tests of programs with requests: nothing is sent, and everything else is real.
import { ErrorCode, OutliveError, toStoredError } from "../job/errors.ts";
import type { Wire } from "../engine/request.ts";

/** What comes back. A text, an object (as JSON), a status, all of these, or an error of the network before or after sending. */
export type CannedAnswer =
  | string
  | number
  | {
      /** The status code. Default 200. */
      readonly status?: number;
      /** Its headers. Default: none. */
      readonly headers?: Readonly<Record<string, string>>;
      /** The body as JSON. Default: `text`. */
      readonly json?: unknown;
      /** The body. Default: empty. */
      readonly text?: string;
    }
  | {
      /** The network fails before ("unsent") or after the request was sent ("cut"). */
      readonly error: "unsent" | "cut";
    };

/** A request as it would have gone out. */
export interface SentRequest {
  /** Its method, in capitals. */
  readonly method: string;
  /** Its whole address, query included. */
  readonly url: string;
  /** Its headers; names are in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** Its body as text; empty if it has none. */
  readonly body: string;
}

/** Canned responses in place of the network, and what was sent to them. */
export interface Answers {
  /** For `open({ network })`. */
  readonly network: Wire;
  /** All that was sent, in order. */
  readonly sent: readonly SentRequest[];
}

/**
 * Answers by method and URL, in which * stands for any text: `answers({ "POST https://api.example/*": { json: { ok: true } } })`. A list is used in order, and its last entry repeats; a
 * function gets the request. A request that nothing matches fails its job, with an error that names it.
 */
export function answers(
  given: Readonly<Record<string, CannedAnswer | readonly CannedAnswer[] | ((request: SentRequest) => CannedAnswer)>>,
): Answers {
  const sent: SentRequest[] = [];
  const used = new Map<string, number>();
  const answerTo = (request: SentRequest): CannedAnswer => {
    for (const [pattern, answer] of Object.entries(given)) {
      if (!matches(pattern, `${request.method} ${request.url}`)) continue;
      if (typeof answer === "function") return answer(request);
      if (!Array.isArray(answer)) return answer as CannedAnswer;
      const at = used.get(pattern) ?? 0;
      used.set(pattern, at + 1);
      return (answer as readonly CannedAnswer[])[Math.min(at, answer.length - 1)]!;
    }
    throw new OutliveError(
      ErrorCode.requestRefused,
      `There is no canned answer for ${request.method} ${request.url}.`,
      `Add one to answers(), which has ${Object.keys(given).join(", ") || "none"}.`,
    );
  };
  const network: Wire = ({ request: { method, url, headers, body } }) => {
    const request = { method, url: url.href, headers, body: body?.toString() ?? "" };
    sent.push(request);
    return { ended: Promise.resolve(request).then(answerTo).then(endOf).catch(refused), abort: () => {} };
  };
  return { network, sent };
}

function matches(pattern: string, text: string): boolean {
  const parts = pattern.split("*").map((part) => part.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join(".*")}$`).test(text);
}

type End = Awaited<ReturnType<Wire>["ended"]>;

/** Nothing matches, or the function of the test threw: nothing was sent, and sending it again changes nothing. */
function refused(thrown: unknown): End {
  return { is: "none", sent: false, fault: "refused", message: toStoredError(thrown).message, status: null };
}

function endOf(answer: CannedAnswer): End {
  if (typeof answer === "object" && "error" in answer) {
    const sent = answer.error === "cut";
    return { is: "none", sent, fault: "network", message: `canned: ${answer.error}`, status: null };
  }
  const {
    status = 200,
    headers = {},
    json,
    text = "",
  } = typeof answer === "string" ? { text: answer } : typeof answer === "number" ? { status: answer } : answer;
  const body = Buffer.from(json === undefined ? text : JSON.stringify(json));
  return { is: "answer", status, headers, body, wireBytes: body.length };
}
