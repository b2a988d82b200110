// What stands between a request and the network: the real sender (sender.ts), or canned answers in tests. Nothing here names undici, so that programs
// without it compile.
import { toStoredError } from "../job/errors.ts";
import type { BlobBody, ResponseBlobs } from "./body.ts";
import type { Timeouts } from "./contract.ts";
import type { Hop } from "./redirects.ts";

/** A response. */
export interface Answer {
  /** It is one. */
  readonly is: "answer";
  /** The status code. */
  readonly status: number;
  /** Its headers; names are in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** Its body, decoded. */
  readonly body: Buffer | BlobBody;
  /** The size of its body on the wire, in bytes. */
  readonly wireBytes: number;
}

/** How it ended without a response that can be used. */
export interface NoAnswer {
  /** There is no response. */
  readonly is: "none";
  /** Whether a byte may have gone out. */
  readonly sent: boolean;
  /** What went wrong. */
  readonly fault: "network" | "timeout" | "refused" | "too-large" | "aborted";
  /** The same in words. */
  readonly message: string;
  /** The status code of a response that had begun; null: none had. */
  readonly status: number | null;
}

/** How a request is sent. */
export interface SendOptions {
  /** How long it may take. */
  readonly timeouts: Timeouts;
  /** The maximum size of its response, in bytes. */
  readonly maxResponse: number;
  /** The body is not kept. */
  readonly ignoreBody: boolean;
  /** Where large responses go; null: they are an error. */
  readonly blobs: {
    /** The blob store. */
    readonly store: ResponseBlobs;
    /** The key of the blob. */
    readonly key: string;
    /** The maximum size there, in bytes. */
    readonly max: number;
    /** Whether a response with this status is kept. */
    readonly accepts: (status: number) => boolean;
  } | null;
  /** Whether it needs a new connection. */
  readonly fresh: boolean;
}

/** Sends one request, and can end it. */
export type Wire = (
  hop: Hop,
  options: SendOptions,
  deadlineMono: number,
) => {
  /** Resolves when it has ended. Never rejects. */
  readonly ended: Promise<Answer | NoAnswer>;
  /** Ends it now. What was sent stays sent. */
  abort(fault: "timeout" | "aborted", message: string): void;
};

/** How it ended. One that rejects all the same must not end the process, and says nothing about whether the request was sent. */
export function endOf({ ended }: Pick<ReturnType<Wire>, "ended">): Promise<Answer | NoAnswer> {
  return ended.catch((thrown: unknown) => {
    const { message } = toStoredError(thrown);
    return { is: "none", sent: true, fault: "network", message, status: null };
  });
}
