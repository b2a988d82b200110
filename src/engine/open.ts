// Opening a store by its address. `open()`: options, store, log and start-up recovery, in that order; it resolves only when recovery is
// finished. And the check and the repair of a store that may be too damaged to be opened.
import { openBlobs } from "../blobs/open.ts";
import { type CollectionState, isOpen } from "../job/collections.ts";
import { ErrorCode, OutliveError, toStoredError } from "../job/errors.ts";
import { EventBus } from "../job/events.ts";
import { systemClock, systemRandom } from "../platform/clock.ts";
import { checkProcess, processIdentity } from "../platform/identity.ts";
import { assertNotBundled } from "../platform/program-file.ts";
import type { IntegrityReport, Repair, RepairOptions } from "../stores/store-parts.ts";
import type { Broker } from "../stores/broker.ts";
import { openBackend, shownAddress, storeAt } from "../stores/registry.ts";
import { attachLog } from "../telemetry/log.ts";
import { batchesOf, schedulesOf } from "./batch.ts";
import { collectionsOf } from "./collection.ts";
import { contractsOf } from "./client.ts";
import { type OutliveConfig, resolveCall } from "./config.ts";
import { Engine } from "./engine.ts";
import { requestsOf } from "./request.ts";
import { type Declared, type EngineOptions, engineSettings, type KindsOf, settingsWithDefaults } from "./options.ts";

/**
 * Opens a store: an address such as `sqlite:./jobs.db`, or the configuration that `defineConfig` made. An address is used as it is.
 * A configuration follows the rule of the command line: options of this call win over the environment (`OUTLIVE_STORE`), which wins
 * over the configuration. Creates and migrates the file, recovers the work of workers that died, and only then resolves. A damaged
 * file is repaired as far as `recovery.repair` allows; beyond that it rejects with STORE_DAMAGED, and `readOnly: true` opens it for
 * reading.
 */
export async function open<const Jobs extends readonly Declared[] = readonly Declared[]>(
  where: string | OutliveConfig,
  options: EngineOptions & {
    /** The kinds, batches, requests, collections and schedules of this program. Only these can be enqueued and run here. Default: none. */
    readonly jobs?: Jobs;
  } = {},
): Promise<Engine<KindsOf<Jobs>>> {
  if (options.readOnly === true) return attach(where, options);
  const { engine, declare, reportCollections, abandon } = await make(where, options, true);
  try {
    await declare();
    await engine.operator.recoverAtOpen();
    await reportCollections();
  } catch (thrown) {
    await abandon();
    throw thrown;
  }
  return engine;
}

/** For tools such as the command line: an engine on an existing store. Creates, migrates, declares and recovers nothing. */
export async function attach(where: string | OutliveConfig, options: EngineOptions = {}): Promise<Engine> {
  return (await make(where, options, false)).engine;
}

async function make(
  where: string | OutliveConfig,
  given: EngineOptions,
  migrate: boolean,
): Promise<Record<"declare" | "reportCollections" | "abandon", () => Promise<void>> & { engine: Engine }> {
  const { store: url, options } = resolveCall(where, given);
  const row = storeAt(url);
  const settings = engineSettings(options, row.name);
  if (migrate && !row.isPrivate(url)) assertNotBundled();
  const jobs = options.jobs ?? [];
  const contracts = contractsOf(jobs);
  const collections = collectionsOf(jobs);
  const blobs = options.blobs === undefined ? null : openBlobs(options.blobs);
  const broker = await brokerOf(options.broker);
  const bus = new EventBus(toStoredError);
  if (options.logger !== false) attachLog(bus, options.logger);
  if (options.onEvent) bus.onAny(options.onEvent);
  const identity = processIdentity();
  if (options.clock !== undefined && !row.isPrivate(url))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The option clock was passed to open() with ${shownAddress(url)}.`,
      "Other processes do not have it. Use sqlite::memory: in tests, or remove the option.",
      { option: "clock" },
    );
  const deps = { clock: options.clock ?? systemClock, random: systemRandom };
  const { readOnly, startUp } = settings;
  const kind = { migrate, startUp, readOnly };
  const { contactMs } = settings.times;
  const backend = await openBackend(url, options, { ...deps, events: bus, bootId: identity.bootId, contactMs }, kind);
  const clock = backend.clock ?? deps.clock;
  const engine = new Engine({
    backend,
    settings,
    contracts,
    batches: batchesOf(jobs),
    requests: requestsOf(jobs),
    secrets: options.secrets ?? {},
    ...(options.network && { wire: { wire: options.network } }),
    schedules: schedulesOf(jobs),
    collections,
    broker,
    ...(options.middleware && { middleware: options.middleware }),
    blobs,
    ...deps,
    clock,
    bus,
    identity,
    processState: checkProcess,
  });
  // Before the recovery that `open` runs, which is heard as well.
  for (const one of options.middleware ?? [])
    if (one.event) bus.onAny((event) => one.event!(event, (id) => backend.store.inspect.get(id)));
  const kinds = [...contracts.values()].map((contract) => settingsWithDefaults(contract, settings));
  const abandon = async (): Promise<void> => {
    await backend.opened?.(false);
    await engine.close();
  };
  const reportCollections = async (): Promise<void> => {
    if (collections.size === 0 || backend.store.collections === undefined) return;
    const counts: Partial<Record<CollectionState, number>> = {};
    for (const { state, count } of await engine.collectionCounts())
      if (isOpen(state) || state === "complete") counts[state] = (counts[state] ?? 0) + count;
    if (Object.keys(counts).length > 0) bus.emit("collections.found", { counts });
  };
  return { engine, declare: () => backend.store.declare(kinds), reportCollections, abandon };
}

/** Its driver is loaded when it is connected; without a broker not even its adapter is. */
async function brokerOf(given: EngineOptions["broker"]): Promise<Broker | null> {
  if (given === undefined) return null;
  return typeof given === "string" ? (await import("../brokers/rabbitmq/rabbitmq.ts")).rabbitmq(given) : given;
}

// Checks and repairs a store by its address, also one that can't be opened. For command lines; it starts nothing and accepts no work.

/** A full check, without a time limit. Rows are compared only if the store is sound. With `readOnly` nothing at all is written. */
export async function checkStore(url: string, options: EngineOptions): Promise<IntegrityReport> {
  const doctor = (await storeAt(url).doctor?.(url)) ?? null;
  if (doctor === null) {
    await using engine = await attach(url, { ...options, logger: false });
    return await engine.operator.integrity();
  }
  const check = await doctor.check({ readOnly: options.readOnly ?? false });
  if (check.verdict !== "PASSED") return { ...check, inconsistencies: [] };
  try {
    await using engine = await attach(url, { ...options, logger: false });
    return { ...check, inconsistencies: await engine.operator.inconsistencies() };
  } catch (thrown) {
    // A sound file that is not a store, or not of this version: there is nothing to compare.
    if (!(thrown instanceof OutliveError)) throw thrown;
    return { ...check, inconsistencies: [] };
  }
}

/** A damaged PostgreSQL server is repaired with its own tools and backups. */
export function canRepair(url: string): boolean {
  return storeAt(url).doctor !== undefined;
}

/** Whether the store is a file: one that can be salvaged into another. */
export function isFile(url: string): boolean {
  return storeAt(url).files !== undefined;
}

/** Repairs a store that `canRepair`. */
export async function repairStore(url: string, options: RepairOptions): Promise<Repair> {
  const doctor = await storeAt(url).doctor?.(url);
  if (doctor) return doctor.repair(options);
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `There is nothing to repair at ${shownAddress(url)}.`,
    "Use the tools and backups of its server.",
    { url: shownAddress(url) },
  );
}
