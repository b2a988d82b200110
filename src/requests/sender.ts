// One sending: what goes to the socket, and what comes back, as facts. It knows exactly whether the request was sent, because undici calls `onRequestStart` when
// it hands a request to a socket and not before. It decides nothing about what follows. undici has no total timeout, and its body timeout begins again
// with each chunk, so the total is ours: one timer for all that are under way.
import { OutliveError } from "../job/errors.ts";
import { BlobUpload, type BlobBody, codingOf, decoded, TooLarge, Undecodable } from "./body.ts";
import type { Dispatcher } from "./connections.ts";
import type { Rendered } from "./rendered.ts";
import type { Answer, NoAnswer, SendOptions } from "./wire.ts";

const TICK_MS = 100;
const EMPTY = Buffer.alloc(0);
/** Of a sending that has kept nothing: thousands wait for an answer without an array of their own. Never pushed to. */
const NO_CHUNKS: Buffer[] = [];
/** As if it were omitted: spreading it or not takes longer, and false would keep the connection of a HEAD. */
const NOT_RESET = undefined as unknown as boolean;
/** More informational answers than this are an attack. */
const MAX_INFORMATIONAL = 20;

/**
 * Slots and not a Set. One that is filled and emptied without end keeps what was in it until the next full collection: 9 MB of 3,500 requests survived each
 * small one, next to 1 MB.
 */
class UnderWay {
  readonly slots: (Sending | undefined)[] = [];
  readonly #free: number[] = [];

  get size(): number {
    return this.slots.length - this.#free.length;
  }

  add(sending: Sending): number {
    const slot = this.#free.pop() ?? this.slots.length;
    this.slots[slot] = sending;
    return slot;
  }

  remove(slot: number): void {
    this.slots[slot] = undefined;
    this.#free.push(slot);
  }
}

/** Where a request goes, as undici wants it. Made of a URL it costs more than all else in this file. */
interface Place {
  readonly url: URL | null;
  readonly origin: string;
  readonly path: string;
}

function placeOf(url: URL): Place {
  return { url, origin: url.origin, path: url.pathname + url.search };
}

export class Sender {
  readonly #underWay = new UnderWay();
  readonly #mono: () => number;
  /** Of the latest request: the next one often goes to the same place. */
  #place: Place = { url: null, origin: "", path: "" };
  #timer: NodeJS.Timeout | undefined;

  constructor(mono: () => number) {
    this.#mono = mono;
  }

  get size(): number {
    return this.#underWay.size;
  }

  send(dispatcher: Dispatcher, request: Rendered, options: SendOptions, deadlineMono: number): Sending {
    const sending = new Sending(options, deadlineMono, this.#underWay);
    this.#timer ??= setInterval(() => this.#tick(), TICK_MS);
    if (this.#place.url !== request.url) this.#place = placeOf(request.url);
    sending.start(dispatcher, request, this.#place);
    return sending;
  }

  #tick(): void {
    const mono = this.#mono();
    for (const sending of this.#underWay.slots)
      if (sending && mono >= sending.deadlineMono) sending.abort("timeout", "the request passed its total timeout");
    if (this.#underWay.size > 0) return;
    clearInterval(this.#timer);
    this.#timer = undefined;
  }
}

interface EndListener {
  /** Must not throw: undici calls it. */
  ended(end: Answer | NoAnswer): void;
}

export class Sending implements Dispatcher.DispatchHandler {
  readonly deadlineMono: number;
  readonly #options: SendOptions;
  readonly #underWay: UnderWay;
  readonly #slot: number;
  #listener: EndListener | undefined;
  #controller: Dispatcher.DispatchController | undefined;
  #ending: Answer | NoAnswer | null = null;
  #sent = false;
  #informational = 0;
  #status: number | null = null;
  #headers: Headers = NO_HEADERS;
  #chunks: Buffer[] = NO_CHUNKS;
  #bytes = 0;
  #upload: BlobUpload | undefined;
  #isCut = false;

  constructor(options: SendOptions, deadlineMono: number, underWay: UnderWay) {
    this.#options = options;
    this.deadlineMono = deadlineMono;
    this.#underWay = underWay;
    this.#slot = underWay.add(this);
  }

  get ended(): Promise<Answer | NoAnswer> {
    return new Promise((resolve) => this.tell({ ended: resolve }));
  }

  /** Calls it when this has ended; at once if it has. */
  tell(listener: EndListener): void {
    if (this.#ending) listener.ended(this.#ending);
    else this.#listener = listener;
  }

  start(dispatcher: Dispatcher, { method, headers, body }: Rendered, { origin, path }: Place): void {
    const { timeouts, fresh } = this.#options;
    try {
      dispatcher.dispatch(
        {
          origin,
          path,
          method,
          headers: headers as Record<string, string>,
          body,
          headersTimeout: timeouts.headersMs,
          bodyTimeout: timeouts.bodyMs,
          reset: fresh ? true : NOT_RESET,
        },
        this,
      );
    } catch (thrown) {
      this.onResponseError(undefined as never, thrown as Error);
    }
  }

  /** Ends it now. What was sent stays sent. */
  abort(fault: "timeout" | "aborted", message: string): void {
    if (this.#ending) return;
    this.#none(fault, message);
    this.#controller?.abort(new Error(message));
  }

  // ---- undici's calls

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    // It ended while it waited for a connection: nothing goes out.
    if (this.#ending) return controller.abort(new Error("ended before it was sent"));
    this.#sent = true;
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number, headers: Headers): void {
    if (this.#ending) return;
    if (status < 200) {
      if (++this.#informational > MAX_INFORMATIONAL)
        this.#stop(controller, "network", "the server sends informational responses without end");
      return;
    }
    this.#status = status;
    this.#headers = headers;
    const length = Number(headers["content-length"] ?? 0);
    if (length > this.#limit && !this.#options.ignoreBody)
      this.#stop(controller, "too-large", `the response has ${length} bytes, at most ${this.#limit} are accepted`);
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#ending) return;
    const { ignoreBody, maxResponse, blobs } = this.#options;
    this.#bytes += chunk.length;
    if (this.#bytes > this.#limit)
      return this.#stop(controller, "too-large", `the response has more than ${this.#limit} bytes`);
    if (ignoreBody) return;
    if (this.#upload) {
      if (!this.#upload.push(chunk)) controller.pause();
      return;
    }
    const isLarge = this.#bytes > maxResponse && blobs !== null;
    // No callback gets it, so nothing would delete its blob: what came so far is enough to be shown.
    if (isLarge && !blobs.accepts(this.#status!)) return void (this.#isCut = true);
    if (this.#chunks === NO_CHUNKS) this.#chunks = [chunk];
    else this.#chunks.push(chunk);
    if (!isLarge) return;
    try {
      this.#upload = new BlobUpload(
        blobs.store,
        blobs.key,
        codingOf(header(this.#headers, "content-encoding")),
        blobs.max,
        () => controller.resume(),
      );
    } catch (thrown) {
      return this.#stop(controller, "network", (thrown as Error).message);
    }
    // A blob store that fails, or an answer that unpacks to too much, ends the sending.
    this.#upload.done.catch((error: Error) =>
      this.#stop(controller, error instanceof TooLarge ? "too-large" : "network", error.message),
    );
    if (!this.#upload.push(this.#taken())) controller.pause();
  }

  onResponseEnd(): void {
    if (this.#ending) return;
    const isPlain = this.#upload === undefined && this.#headers["content-encoding"] === undefined;
    if (isPlain) this.#answered(this.#taken());
    else void this.#finish();
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    if (this.#ending) return;
    const { code } = error as { code?: string };
    const isTimeout = code !== undefined && /TIMEOUT|ETIMEDOUT/.test(code);
    const isRefused =
      error instanceof OutliveError || code === "UND_ERR_INVALID_ARG" || code === "UND_ERR_NOT_SUPPORTED";
    this.#none(isRefused ? "refused" : isTimeout ? "timeout" : "network", isRefused ? error.message : described(error));
  }

  // ----

  get #limit(): number {
    const { maxResponse, blobs, ignoreBody } = this.#options;
    return ignoreBody ? Math.max(maxResponse, IGNORED_MAX) : (blobs?.max ?? maxResponse);
  }

  async #finish(): Promise<void> {
    try {
      this.#answered(this.#upload ? await this.#uploaded() : await this.#whole());
    } catch (thrown) {
      const fault = thrown instanceof TooLarge ? "too-large" : "network";
      this.#none(
        fault,
        thrown instanceof Undecodable || fault === "too-large" ? (thrown as Error).message : described(thrown as Error),
      );
    }
  }

  #answered(body: Buffer | BlobBody): void {
    this.#end(new Answered(this.#status!, this.#headers, body, this.#bytes));
  }

  /** What came, as it came. */
  #taken(): Buffer {
    const chunks = this.#chunks;
    this.#chunks = NO_CHUNKS;
    return chunks.length === 0 ? EMPTY : chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
  }

  async #whole(): Promise<Buffer> {
    const data = this.#taken();
    if (this.#options.ignoreBody || this.#isCut) return EMPTY;
    return decoded(data, codingOf(header(this.#headers, "content-encoding")), this.#options.maxResponse);
  }

  #uploaded(): Promise<BlobBody> {
    this.#upload!.end();
    return this.#upload!.done;
  }

  #stop(controller: Dispatcher.DispatchController, fault: NoAnswer["fault"], message: string): void {
    this.#none(fault, message);
    controller.abort(new Error(message));
  }

  #none(fault: NoAnswer["fault"], message: string): void {
    this.#upload?.fail(new Error(message));
    this.#end({ is: "none", sent: this.#sent, fault, message, status: this.#status });
  }

  #end(end: Answer | NoAnswer): void {
    if (this.#ending) return;
    this.#ending = end;
    this.#chunks = NO_CHUNKS;
    this.#underWay.remove(this.#slot);
    this.#listener?.ended(end);
  }
}

/** Headers as undici has them: those that come several times are lists. */
type Headers = Readonly<Record<string, string | string[] | undefined>>;

const NO_HEADERS: Headers = {};

function header(headers: Headers, name: string): string | undefined {
  const value = headers[name];
  return Array.isArray(value) ? value.join(", ") : value;
}

/** The headers of most answers are never read, so they are copied when they are. */
class Answered implements Answer {
  readonly is = "answer";
  readonly status: number;
  readonly body: Buffer | BlobBody;
  readonly wireBytes: number;
  readonly #given: Headers;
  #headers: Record<string, string> | undefined;

  constructor(status: number, headers: Headers, body: Buffer | BlobBody, wireBytes: number) {
    this.status = status;
    this.#given = headers;
    this.body = body;
    this.wireBytes = wireBytes;
  }

  get headers(): Readonly<Record<string, string>> {
    if (this.#headers) return this.#headers;
    const copied: Record<string, string> = {};
    for (const name in this.#given) {
      const value = header(this.#given, name);
      if (value !== undefined && name !== "set-cookie") copied[name] = value;
    }
    return (this.#headers = copied);
  }
}

/** A body that is not read is still received up to here, so that the connection can be used again. */
const IGNORED_MAX = 1 << 20;

/** Names the code. Messages of undici and of the kernel hold no header and no path. */
function described(error: Error): string {
  const { code } = error as { code?: string };
  const cause = error instanceof AggregateError ? (error.errors[0] as Error | undefined) : undefined;
  const text = error.message === "" ? (cause?.message ?? error.name) : error.message;
  return code === undefined || text.includes(code) ? text : `${text} (${code})`;
}
