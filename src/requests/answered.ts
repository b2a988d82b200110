// From how a sending ended to what is decided on and what is kept of it: the case for `outcome.ts`, the body as its kind reads it, and what people are shown.
import { encodeJson, type Json } from "../job/json.ts";
import { cutText } from "../job/text.ts";
import type { AnyRequest } from "./contract.ts";
import { type Came, retryAfterMs } from "./outcome.ts";
import type { Answer, NoAnswer } from "./wire.ts";

const MAX_SHOWN_BODY = 4_096;

export function cameOf(end: Answer | NoAnswer, ok: (status: number) => boolean, now: number): Came {
  if (end.is === "answer") {
    const { status, headers } = end;
    return {
      is: "answer",
      status,
      accepted: ok(status),
      retryAfterMs: retryAfterMs(headers["retry-after"], headers["date"], now),
    };
  }
  const { sent, fault, message, status } = end;
  if (fault === "refused" || fault === "too-large") return { is: "refused", fault, message };
  const how = fault === "timeout" ? "timeout" : "network";
  // A gateway's 502 with a body that was cut off is what its status says.
  if (status !== null && !ok(status) && status >= 400)
    return { is: "answer", status, accepted: false, retryAfterMs: null };
  return sent ? { is: "cut", fault: how, message } : { is: "unsent", fault: how, message };
}

export function textOf(end: Answer | NoAnswer): string {
  return end.is === "answer" ? `answered ${end.status}` : end.message;
}

export function shownBody(end: Answer | NoAnswer): string | null {
  if (end.is === "none" || !Buffer.isBuffer(end.body)) return null;
  return cutText(end.body.subarray(0, MAX_SHOWN_BODY).toString("utf8"), MAX_SHOWN_BODY);
}

/** The body as it is kept for the callback. */
export interface Answered {
  readonly body: Json;
  readonly blob: Json;
}

/** At once, unless the schema of the kind takes its time. */
export function answeredBy({ request }: AnyRequest, { body }: Answer): Answered | Error | Promise<Answered | Error> {
  const blob = null;
  if (!Buffer.isBuffer(body)) return { body: null, blob: { ...body } };
  const { response } = request;
  if (response === "ignore") return NOTHING_KEPT;
  if (response === "bytes") return { body: body.toString("base64"), blob };
  const text = body.toString("utf8");
  if (response === "text") return { body: text, blob };
  let value: unknown;
  try {
    value = JSON.parse(text);
    encodeJson(value, "The answer");
  } catch (thrown) {
    return new Error(`the response is not JSON that can be stored: ${(thrown as Error).message}`);
  }
  // What is stored is the schema's input; the callback gets its output.
  const kept = { body: value as Json, blob };
  if (response === "json") return kept;
  const checked = response["~standard"].validate(value);
  const fits = ({ issues }: { readonly issues?: readonly { readonly message: string }[] | undefined }) =>
    issues
      ? new Error(
          `the response does not fit its schema: ${issues
            .slice(0, 5)
            .map(({ message }) => message)
            .join("; ")}`,
        )
      : kept;
  return checked instanceof Promise ? checked.then(fits) : fits(checked);
}

const NOTHING_KEPT: Answered = { body: null, blob: null };
