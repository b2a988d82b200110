// What stands between a request and the network, as types: the real sender (sender.ts), or canned answers in tests. Nothing here names undici, so that programs
// without it compile.
import type { BlobBody, ResponseBlobs } from "./body.ts";
import type { Timeouts } from "./contract.ts";
import type { Hop } from "./redirects.ts";

export interface Answer {
  readonly is: "answer";
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** Decoded. */
  readonly body: Buffer | BlobBody;
  readonly wireBytes: number;
}

/** How it ended without an answer that can be used. `sent`: a byte may have gone out. */
export interface NoAnswer {
  readonly is: "none";
  readonly sent: boolean;
  readonly fault: "network" | "timeout" | "refused" | "too-large" | "aborted";
  readonly message: string;
  /** Of an answer that had begun. */
  readonly status: number | null;
}

export interface SendOptions {
  readonly timeouts: Timeouts;
  readonly maxResponse: number;
  /** The body is not kept. */
  readonly ignoreBody: boolean;
  /** Large answers go there, under this key; null: they are an error. */
  readonly blobs: { readonly store: ResponseBlobs; readonly key: string; readonly max: number } | null;
  readonly fresh: boolean;
}

/** Sends one hop, and can end it. */
export type Wire = (
  hop: Hop,
  options: SendOptions,
  deadlineMono: number,
) => {
  readonly ended: Promise<Answer | NoAnswer>;
  /** Ends it now. What was sent stays sent. */
  abort(fault: "timeout" | "aborted", message: string): void;
};
