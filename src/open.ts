// `open()`: options, store, log and start-up recovery, in that order. It resolves only when recovery is finished.
import { assertSqlite, contractsOf } from "./client.ts";
import { type EngineOptions, engineSettings } from "./config.ts";
import { settingsWithDefaults } from "./contract.ts";
import { toStoredError } from "./core/errors.ts";
import { EventBus } from "./core/events.ts";
import { Engine } from "./engine.ts";
import { systemClock, systemRandom } from "./platform/clock.ts";
import { processIdentity } from "./platform/identity.ts";
import { sqlitePath } from "./stores/sqlite/client.ts";
import { openSqlite } from "./stores/sqlite/open.ts";
import { attachLog, consoleLogger } from "./telemetry/log.ts";

/**
 * Opens a store: `sqlite:./jobs.db`, or `sqlite::memory:` for tests. Creates and migrates the file, recovers the work of
 * workers that died, and only then resolves.
 */
export async function open(url: string, options: EngineOptions = {}): Promise<Engine> {
  const settings = engineSettings(options);
  assertSqlite(url);
  const contracts = contractsOf(options.jobs ?? []);
  const bus = new EventBus(toStoredError);
  if (options.logger !== false) attachLog(bus, options.logger ?? consoleLogger);
  if (options.onEvent) bus.onAny(options.onEvent);
  const identity = processIdentity();
  const clock = systemClock;
  const random = systemRandom;
  const path = sqlitePath(url);
  const backend = await openSqlite(
    { clock, random, events: bus, bootId: identity.bootId },
    {
      path,
      durability: options.durability ?? "full",
      allowUnsafeSqlite: options.sqlite?.allowUnsafe ?? false,
      allowNetworkFilesystem: options.sqlite?.allowNetworkFilesystem ?? false,
    },
  );
  const engine = new Engine({
    backend,
    settings,
    contracts,
    clock,
    random,
    bus,
    identity,
    memory: path === ":memory:",
  });
  try {
    await backend.store.declare([...contracts.values()].map((contract) => settingsWithDefaults(contract, settings)));
    await engine.recoverAtOpen();
  } catch (thrown) {
    await engine.close();
    throw thrown;
  }
  return engine;
}
