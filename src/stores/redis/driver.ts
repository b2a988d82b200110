// The only file that imports `@redis/client`, and only when a connection is asked for. To the rest of the store a server is a wire of four
// verbs, so that a client of the user's own can be one, too. A wire is one connection: it never reconnects on its own, never sends a command
// twice, and a call that was in flight when it broke is rejected.
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

/** Connecting takes no longer than this. */
const CONNECT_MS = 5_000;
const KEEP_ALIVE_MS = 5_000;

/** A connection to the server of this address, wherever that is now. */
export async function connect(address: WireAddress, moved: HostPort | null = null): Promise<Wire> {
  const { sentinel, nodes } = address;
  if (sentinel === undefined && nodes === undefined && moved === null) return connectTo(address);
  const { connectToPrimary } = await import("./find-primary.ts");
  return connectToPrimary(address, moved);
}

/** A connection to exactly this server. */
export async function connectTo(address: WireAddress): Promise<Wire> {
  if (address.by === "ioredis" || address.by === "iovalkey")
    return (await import("./ioredis.ts")).connectByIoredis(address);
  const { createClient } = await driver();
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
      connectTimeout: CONNECT_MS,
      keepAlive: true,
      keepAliveInitialDelay: KEEP_ALIVE_MS,
    },
  });
  const lost = new Set<() => void>();
  let isLost = false;
  const lose = (): void => {
    if (isLost) return;
    isLost = true;
    // What still waits for a reply is rejected, not sent again.
    client.destroy();
    for (const listener of lost) listener();
  };
  // Without a listener the process would end with it; each call in flight says so itself.
  client.on("error", lose);
  client.on("end", lose);
  await client.connect();
  return {
    call: (args, deadlineMs) => inTime(client.sendCommand<Reply>([...args]), args[0]!, deadlineMs, lose),
    async subscribe(channel, listener) {
      await client.subscribe(channel, listener);
      return async () => {
        if (!isLost) await client.unsubscribe(channel, listener);
      };
    },
    onLost(listener) {
      if (isLost) listener();
      else lost.add(listener);
    },
    close: lose,
  };
}

/** A reply that does not come in time ends the wire: its order of replies can't be trusted to catch up. */
export function inTime(reply: Promise<Reply>, command: string, deadlineMs: number, lose: () => void): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new NoReply(command, deadlineMs));
      lose();
    }, deadlineMs);
    reply.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

export class NoReply extends Error {
  readonly code = "NO_REPLY";

  constructor(command: string, deadlineMs: number) {
    super(`the server did not reply to ${command} within ${deadlineMs} ms`);
  }
}

async function driver(): Promise<Pick<typeof redisClient, "createClient">> {
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
