// A wire by ioredis or iovalkey, for programs that have one of them. Both speak RESP2, in which a connection that is subscribed takes no commands: a wire
// is two connections of theirs, and is lost with either. What they do on their own is switched off: sending commands again that were in flight,
// reconnecting, subscribing again, and keeping commands until there is a connection.
import type { Redis } from "ioredis";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { inTime, type Reply, SUBSCRIBE_MS, type Wire, type WireAddress, WireEnd } from "./driver.ts";

const CONNECT_MS = 5_000;
const KEEP_ALIVE_MS = 5_000;

export async function connectByIoredis({ url, by, options = {} }: WireAddress): Promise<Wire> {
  const { Redis: Client } = await driver(by === "iovalkey");
  const settings = {
    ...options,
    lazyConnect: true,
    retryStrategy: () => null,
    reconnectOnError: null,
    maxRetriesPerRequest: 0,
    enableOfflineQueue: false,
    enableReadyCheck: false,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
    enableAutoPipelining: false,
    connectTimeout: CONNECT_MS,
    keepAlive: KEEP_ALIVE_MS,
  };
  const made: Redis[] = [];
  const end = new WireEnd(() => {
    for (const client of made) client.disconnect();
  });
  const asReason = (thrown: unknown): never => {
    throw thrown instanceof Error && thrown.name === "ReplyError" ? thrown : end.reasonOf(thrown);
  };
  const another = async (): Promise<Redis> => {
    // Without options of the user's client the address says everything.
    const client = Object.keys(options).length > 0 ? new Client(settings) : new Client(url, settings);
    made.push(client);
    client.on("error", end.lose);
    client.on("end", () => end.lose());
    try {
      await inTime(client.connect(), "the greeting", 2 * CONNECT_MS, end.lose);
    } catch (thrown) {
      end.lose(thrown);
      return asReason(thrown);
    }
    return client;
  };
  const client = await another();
  const heard = new Map<string, (message: string) => void>();
  let subscribing: Promise<Redis> | undefined;
  const subscriber = (): Promise<Redis> => {
    subscribing ??= another().then((one) =>
      one.on("message", (channel: string, message: string) => heard.get(channel)?.(message)),
    );
    return subscribing;
  };
  return {
    call: ([command, ...args], deadlineMs) =>
      inTime(client.call(command!, ...args) as Promise<Reply>, command!, deadlineMs, end.lose).catch(asReason),
    async subscribe(channel, listener) {
      const one = await subscriber();
      heard.set(channel, listener);
      await inTime(one.subscribe(channel), "SUBSCRIBE", SUBSCRIBE_MS, end.lose).catch(asReason);
      return async () => {
        heard.delete(channel);
        if (!end.isLost) await inTime(one.unsubscribe(channel), "UNSUBSCRIBE", SUBSCRIBE_MS, end.lose).catch(asReason);
      };
    },
    onLost: (listener) => end.onLost(listener),
    close: () => end.lose(),
  };
}

type Driver = { readonly Redis: typeof Redis };

/** Either of them: what they are given, and what is called, is the same. Each is imported inside a `try`, so that bundlers take it for optional. */
async function driver(mustBeIovalkey: boolean): Promise<Driver> {
  try {
    if (!mustBeIovalkey) return await import("ioredis");
  } catch (thrown) {
    if ((thrown as { code?: unknown }).code !== "ERR_MODULE_NOT_FOUND") throw thrown;
  }
  try {
    return (await import("iovalkey")) as unknown as Driver;
  } catch (thrown) {
    if ((thrown as { code?: unknown }).code !== "ERR_MODULE_NOT_FOUND") throw thrown;
  }
  throw new OutliveError(
    ErrorCode.driverMissing,
    "`redis.client` is a client of ioredis or iovalkey, and neither package can be loaded.",
    "Run `npm install ioredis` in this program, or leave `redis.client` out and run `npm install @redis/client`.",
  );
}
