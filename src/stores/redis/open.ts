// Opening the Redis store: the server, what it promises, its clock, and what belongs to the store in addition to the port (liveness, wake-ups, maintenance).
// There are no tables to migrate: the first process that opens a store begins it.
import { defaultOf } from "../../engine/settings.ts";
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { Emitter } from "../../job/events.ts";
import { type Clock, durationMs, type Random } from "../../job/time.ts";
import { newSharedTimes, type ServerClock, serverClock, sharedTimes } from "../../platform/clock.ts";
import { programFile } from "../../platform/program-file.ts";
import { InterimHeartbeat } from "../../recovery/heartbeat.ts";
import type { MaintenanceOptions } from "../../recovery/maintenance.ts";
import { startMaintenanceThread } from "../../recovery/maintenance-thread.ts";
import type { Backend, MaintenanceHandle, MaintenanceListener } from "../backend.ts";
import type { Store, Wakeup } from "../port.ts";
import type { RedisAddress } from "./address.ts";
import { Connection, type Loss, SCHEMA_VERSION } from "./connection.ts";
import { openingError, worded } from "./errors.ts";
import { SubscriptionLiveness } from "./liveness.ts";
import type { RedisMaintenance } from "./maintenance-thread.ts";
import { redisStore } from "./store.ts";
import { openingFindings, serverInfo, serverSettings } from "./upkeep.ts";
import { WakeupChannel } from "./wakeup.ts";
import { counted } from "../../job/text.ts";

export interface OpenRedisDeps {
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  /** How long a worker's subscription may be missing before contact with it is lost. Default: that of `heartbeat.contact`. */
  readonly contactMs?: number;
}

export async function openRedis(deps: OpenRedisDeps, address: RedisAddress): Promise<Backend> {
  const { random, events } = deps;
  const shared = newSharedTimes();
  const clock = serverClock(deps.clock, sharedTimes(shared));
  const connection = await openConnection(address, random, clock, events);
  const liveness = new SubscriptionLiveness({
    connection,
    clock,
    random,
    contactMs: deps.contactMs ?? durationMs(defaultOf("heartbeat.contact"), "heartbeat.contact"),
    onHold: (why, holdMs) => events.emit("recovery.held", { why, holdMs }),
  });
  const wakeup = new WakeupChannel(connection, clock);
  const store = redisStore({ connection, clock, wakeups: wakeup, events });
  return {
    store,
    liveness,
    clock,
    schemaVersion: SCHEMA_VERSION,
    private: false,
    startMaintenance: (options, host) => inThread({ address, clock, events, shared, store, wakeup }, options, host),
    prepare: () => worded("preparing it for work", openingFindings(connection)),
    removeStrays: async () => [],
    async close() {
      wakeup.close();
      await store.close();
    },
  };
}

/** For clients: the store alone. */
export async function openRedisClient(
  deps: { readonly clock: Clock; readonly random: Random },
  address: RedisAddress,
): Promise<Store> {
  const clock = serverClock(deps.clock);
  const connection = await openConnection(address, deps.random, clock, null);
  return redisStore({ connection, clock, wakeups: new WakeupChannel(connection, clock) });
}

async function openConnection(
  address: RedisAddress,
  random: Random,
  clock: ServerClock,
  events: Emitter | null,
): Promise<Connection> {
  const onServerNow = (now: number, sentAtMono: number): void => clock.set(now, sentAtMono);
  const onLoss = (loss: Loss): void => events?.emit("store.notice", { about: "durability", text: lossText(loss) });
  const connection = new Connection({ address, random, clock, onServerNow, onLoss });
  try {
    // The first script says what time it is there.
    await connection.eval("scheduleClock");
    const info = await serverInfo(connection);
    if (info !== null) assertUsable(info);
    const { appendfsync = null } = info === null ? {} : await serverSettings(connection, ["appendfsync"]);
    const promise = info === null ? null : whatIsLost(info, appendfsync);
    if (promise !== null) events?.emit("store.notice", { about: "durability", text: promise });
    return connection;
  } catch (thrown) {
    await connection.close();
    throw openingError(address.shown, thrown);
  }
}

const OLDEST = 7;

function assertUsable(info: ReadonlyMap<string, string>): void {
  const version = info.get("valkey_version") ?? info.get("redis_version") ?? "";
  if (Number.parseInt(version, 10) < OLDEST)
    throw unusable(`This server has version ${version}.`, `Outlive needs Redis ${OLDEST}.0, or Valkey 7.2, or newer.`);
  const policy = info.get("maxmemory_policy") ?? "noeviction";
  if (policy !== "noeviction")
    throw unusable(
      `The server's maxmemory-policy is ${policy}: when its memory is full it drops keys, and jobs with them.`,
      "Nothing was written. Set `maxmemory-policy noeviction`, or use a server of its own.",
    );
}

function unusable(what: string, hint: string): OutliveError {
  return new OutliveError(ErrorCode.storeUnusable, what, hint);
}

function lossText({ operations, jobs, ends, failed, dropped }: Loss): string {
  const left =
    failed === 0 ? "" : ` ${counted(failed, "call")} could not be repeated yet, and will be with the next connection.`;
  const gone =
    dropped === 0 ? "" : ` ${counted(dropped, "call is", "calls are")} not repeated, because too much was missing.`;
  const again = `${counted(jobs, "job was", "jobs were")} enqueued and ${counted(ends, "end")} written again.${left}${gone}`;
  if (operations === 0) return `Of what the server had lost, and what could not be repeated before, ${again}`;
  return (
    `The server came back ${counted(operations, "operation")} behind what this process knew of. ${again} ` +
    "Steps, progress and logs of that time are lost."
  );
}

/** What a power loss, or a death of the server, takes of what was acknowledged; null: no more than a second or two, which `outlive status` shows. */
function whatIsLost(info: ReadonlyMap<string, string>, appendfsync: string | null): string | null {
  if (info.get("aof_enabled") !== "1")
    return "The server keeps no append-only file: if it dies, everything since its latest snapshot is lost. Set `appendonly yes`.";
  if (appendfsync === "no")
    return "The server flushes its append-only file when the system does: a power loss takes what was not flushed by then. Set `appendfsync everysec`.";
  return null;
}

interface ThreadParts {
  readonly address: RedisAddress;
  readonly clock: Clock;
  readonly events: Emitter;
  readonly shared: SharedArrayBuffer;
  readonly store: Store;
  readonly wakeup: WakeupChannel;
}

/** Both this process's own connection and that of the thread keep the worker's subscription. */
function inThread(
  parts: ThreadParts,
  options: MaintenanceOptions,
  host: MaintenanceListener,
): Promise<MaintenanceHandle> {
  const { address, clock, events, shared, wakeup } = parts;
  const own: RedisMaintenance = { address };
  const stand = new InterimHeartbeat(parts, options, host);
  const up = (): void => {
    stand.end();
    // What was sent while no connection listened.
    wakeup.heard();
  };
  const file = programFile("stores/redis/maintenance-thread");
  const hears = { wakeup: (what: Wakeup) => wakeup.heard(what), up, down: () => stand.begin() };
  return stand.until(() => startMaintenanceThread({ clock, events, file, own, shared, ...hears }, options, host));
}
