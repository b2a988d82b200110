// `open()`: options, store, log and start-up recovery, in that order. It resolves only when recovery is finished.
import { openBackend, storeNameOf } from "./backends.ts";
import { contractsOf } from "./clients.ts";
import { type EngineOptions, engineSettings } from "./config.ts";
import type { OutliveConfig } from "./config-file.ts";
import { settingsWithDefaults } from "./contract.ts";
import { toStoredError } from "./core/errors.ts";
import { EventBus } from "./core/events.ts";
import { Engine } from "./engine.ts";
import { systemClock, systemRandom } from "./platform/clock.ts";
import { checkProcess, processIdentity } from "./platform/identity.ts";
import { attachLog, consoleLogger } from "./telemetry/log.ts";

/**
 * Opens a store: `sqlite:./jobs.db`, `sqlite::memory:` for tests, or what `defineConfig` made. Creates and migrates the file,
 * recovers the work of workers that died, and only then resolves. A damaged file is mended as far as `recovery.repair` allows;
 * beyond that it rejects with STORE_DAMAGED, and `readOnly: true` opens it to look at what can be read.
 */
export async function open(where: string | OutliveConfig, options: EngineOptions = {}): Promise<Engine> {
  const [url, merged] = typeof where === "object" && where !== null ? fromConfig(where, options) : [where, options];
  if (merged.readOnly === true) return attach(url, merged);
  const { engine, declare, abandon } = await make(url, merged, true);
  try {
    await declare();
    await engine.recoverAtOpen();
  } catch (thrown) {
    await abandon();
    throw thrown;
  }
  return engine;
}

/** The options of the call win over those of the file. Its `jobs` (globs) and `work` are for the CLI; a program passes its own. */
function fromConfig(config: OutliveConfig, options: EngineOptions): [string, EngineOptions] {
  const { store = "sqlite:./outlive.db", jobs: _, work: __, ...engine } = config;
  return [store, { ...engine, ...options }];
}

/** For faces (the CLI, a dashboard): an engine on a store that is there already. Creates, migrates, declares and recovers nothing. */
export async function attach(url: string, options: EngineOptions = {}): Promise<Engine> {
  return (await make(url, options, false)).engine;
}

async function make(
  url: string,
  options: EngineOptions,
  migrate: boolean,
): Promise<{ engine: Engine; declare: () => Promise<void>; abandon: () => Promise<void> }> {
  const settings = engineSettings(options, storeNameOf(url));
  const contracts = contractsOf(options.jobs ?? []);
  const bus = new EventBus(toStoredError);
  if (options.logger !== false) attachLog(bus, options.logger ?? consoleLogger);
  if (options.onEvent) bus.onAny(options.onEvent);
  const identity = processIdentity();
  const deps = { clock: systemClock, random: systemRandom };
  const { readOnly, startUp } = settings;
  const kind = { migrate, startUp, readOnly };
  const { contactMs } = settings.times;
  const backend = await openBackend(url, options, { ...deps, events: bus, bootId: identity.bootId, contactMs }, kind);
  const clock = backend.clock ?? deps.clock;
  const engine = new Engine({
    backend,
    settings,
    contracts,
    ...deps,
    clock,
    bus,
    identity,
    processState: checkProcess,
  });
  const kinds = [...contracts.values()].map((contract) => settingsWithDefaults(contract, settings));
  const abandon = async (): Promise<void> => {
    await backend.opened?.(false);
    await engine.close();
  };
  return { engine, declare: () => backend.store.declare(kinds), abandon };
}
