// The only file that imports `@redis/client`, and only when a connection is asked for. To the rest of the store a server is a wire of four
// verbs, so that a client of the user's own can be one, too. A wire is one connection: it never reconnects on its own, never sends a command
// twice, and a call that was in flight when it broke is rejected. Errors are those of the server, in its words, or `Disconnected`.
import type * as redisClient from "@redis/client";
import type { HostPort } from "./find-primary.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";

/** What a server replies with. */
export type Reply = string | number | null | readonly Reply[];

export interface Wire {
  /** One command. Rejects after `deadlineMs` at the latest; whether it was done is then not known. */
  call(args: readonly string[], deadlineMs: number): Promise<Reply>;
  /** Hears messages of a channel for as long as the wire stands, or until the returned function is called. */
  subscribe(channel: string, listener: (message: string) => void): Promise<() => Promise<void>>;
  /** Called once, when the wire is lost or was closed. */
  onLost(listener: () => void): void;
  close(): void;
}

/** Where the server is: everything that `connect` needs, as plain data. */
export interface WireAddress {
  readonly url: string;
  /** Whose connections to make. Default: those of `@redis/client`. */
  readonly by?: "@redis/client" | "ioredis" | "iovalkey";
  /** Of the user's own client, those that are data. */
  readonly options?: Readonly<Record<string, unknown>>;
  /** The sentinels that know where the primary is; `url` has only what else is needed there. */
  readonly sentinel?: { readonly name: string; readonly nodes: readonly HostPort[]; readonly password: string | null };
  /** Nodes of a cluster: any of them knows which one has the store. */
  readonly nodes?: readonly HostPort[];
}

/** How long a connection may take, and then how long the server may take to greet. */
const CONNECT_MS = 5_000;
const KEEP_ALIVE_MS = 5_000;
export const SUBSCRIBE_MS = 5_000;

/** A connection to the server of this address, wherever that is now. */
export async function connect(address: WireAddress, moved: HostPort | null = null): Promise<Wire> {
  const { sentinel, nodes } = address;
  if (sentinel === undefined && nodes === undefined && moved === null) return connectTo(address);
  const { connectToPrimary } = await import("./find-primary.ts");
  return connectToPrimary(address, moved);
}

/** A connection to exactly this server. */
export async function connectTo(address: WireAddress, connectMs = CONNECT_MS): Promise<Wire> {
  if (address.by === "ioredis" || address.by === "iovalkey")
    return (await import("./ioredis.ts")).connectByIoredis(address);
  const { createClient, ErrorReply } = await driver();
  const { url, options = {} } = address;
  const client = createClient({
    ...options,
    // What a user's own client has connected to is in its options.
    ...(options["socket"] === undefined && { url }),
    RESP: 3,
    disableOfflineQueue: true,
    socket: {
      ...(options["socket"] as object | undefined),
      reconnectStrategy: false,
      connectTimeout: connectMs,
      keepAlive: true,
      keepAliveInitialDelay: KEEP_ALIVE_MS,
    },
  });
  // A client that is destroyed while it connects fails with a TypeError of its own; it closes its socket when connecting fails.
  let isConnecting = true;
  const end = new WireEnd(() => {
    // What still waits for a reply is rejected, not sent again.
    if (!isConnecting && client.isOpen) client.destroy();
  });
  // Without a listener the process would end with it; each call in flight says so itself.
  client.on("error", end.lose);
  client.on("end", () => end.lose());
  const asReason = (thrown: unknown): never => {
    throw thrown instanceof ErrorReply ? thrown : end.reasonOf(thrown);
  };
  try {
    await inTime(client.connect(), "HELLO", 2 * connectMs, end.lose);
    isConnecting = false;
    if (end.isLost) throw end.reasonOf(null);
  } catch (thrown) {
    if (client.isOpen) client.destroy();
    end.lose(thrown);
    return asReason(thrown);
  }
  return {
    call: (args, deadlineMs) =>
      inTime(client.sendCommand<Reply>([...args]), args[0]!, deadlineMs, end.lose).catch(asReason),
    async subscribe(channel, listener) {
      await inTime(client.subscribe(channel, listener), "SUBSCRIBE", SUBSCRIBE_MS, end.lose).catch(asReason);
      return async () => {
        if (!end.isLost)
          await inTime(client.unsubscribe(channel, listener), "UNSUBSCRIBE", SUBSCRIBE_MS, end.lose).catch(asReason);
      };
    },
    onLost: (listener) => end.onLost(listener),
    close: () => end.lose(),
  };
}

/** The end of a wire: it comes once, for one reason, and is announced. */
export class WireEnd {
  isLost = false;
  readonly #close: () => void;
  readonly #listeners = new Set<() => void>();
  #why: unknown;

  constructor(close: () => void) {
    this.#close = close;
  }

  readonly lose = (why?: unknown): void => {
    if (this.isLost) return;
    this.isLost = true;
    this.#why = why;
    this.#close();
    for (const listener of this.#listeners) listener();
  };

  onLost(listener: () => void): void {
    if (this.isLost) listener();
    else this.#listeners.add(listener);
  }

  /** Why a call failed that the server did not reply to: what ended the wire, or, while it stands, what was thrown. */
  reasonOf(thrown: unknown): unknown {
    if (!this.isLost || thrown instanceof Disconnected) return thrown;
    const why = this.#why ?? thrown;
    if (why instanceof Disconnected) return why;
    const { message = "the connection was closed", code } = (why ?? {}) as { message?: string; code?: unknown };
    return new Disconnected(message, typeof code === "string" ? code : undefined, { cause: why });
  }
}

/** A reply that does not come in time ends the wire: its order of replies can't be trusted to catch up. */
export function inTime<T>(
  reply: Promise<T>,
  command: string,
  deadlineMs: number,
  lose: (why: unknown) => void,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      const late = new NoReply(command, deadlineMs);
      reject(late);
      lose(late);
    }, deadlineMs);
    reply.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** The connection broke, was closed, or was never made. Whether a call that was in flight was carried out is not known. */
export class Disconnected extends Error {
  /** Of the socket's error, if it has one. */
  readonly code: string;

  constructor(message: string, code = "DISCONNECTED", options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

class NoReply extends Disconnected {
  constructor(command: string, deadlineMs: number) {
    super(`the server did not reply to ${command} within ${deadlineMs} ms`, "NO_REPLY");
  }
}

async function driver(): Promise<Pick<typeof redisClient, "createClient" | "ErrorReply">> {
  try {
    return await import("@redis/client");
  } catch (thrown) {
    throw new OutliveError(
      ErrorCode.driverMissing,
      "The Redis store needs the package `@redis/client`, which is not installed.",
      "Run `npm install @redis/client` in this program.",
      {},
      { cause: thrown },
    );
  }
}
