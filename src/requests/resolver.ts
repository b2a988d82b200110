// Names to addresses. `dns.lookup` runs two at a time in the thread pool (200 names at 100 ms each took 10 s), so names are asked by c-ares, at most 200 at
// once: with no bound 862 of 5,000 answers were lost, with this one 5,000 names took 0.6 s. Names that c-ares does not know (no dot, /etc/hosts) go to `lookup`.
import { lookup as systemLookup } from "node:dns";
import { Resolver as Ares } from "node:dns/promises";

const AT_ONCE = 200;
const KEPT_MS = 10_000;
const FAILED_MS = 1_000;
const MAX_KEPT = 10_000;

export interface Address {
  readonly address: string;
  readonly family: 4 | 6;
}

export class Resolver {
  readonly #ares = new Ares({ timeout: 2_000, tries: 3 });
  readonly #mono: () => number;
  readonly #kept = new Map<string, { readonly untilMono: number; readonly asking: Promise<readonly Address[]> }>();
  readonly #waiting: (() => void)[] = [];
  #running = 0;

  /** `servers`: instead of the system's, for tests. */
  constructor(mono: () => number, servers?: readonly string[]) {
    this.#mono = mono;
    if (servers) this.#ares.setServers([...servers]);
  }

  /** Never empty. Calls for one name at the same time ask once. */
  resolve(host: string): Promise<readonly Address[]> {
    const kept = this.#kept.get(host);
    if (kept && kept.untilMono > this.#mono()) return kept.asking;
    const asking = this.#ask(host);
    this.#kept.delete(host);
    this.#kept.set(host, { untilMono: this.#mono() + KEPT_MS, asking });
    asking.catch(() => this.#kept.set(host, { untilMono: this.#mono() + FAILED_MS, asking }));
    if (this.#kept.size > MAX_KEPT) this.#kept.delete(this.#kept.keys().next().value!);
    return asking;
  }

  async #ask(host: string): Promise<readonly Address[]> {
    if (!host.includes(".") || host.endsWith(".local") || host.endsWith(".localhost")) return system(host);
    await this.#turn();
    try {
      const [v4, v6] = await Promise.allSettled([this.#ares.resolve4(host), this.#ares.resolve6(host)]);
      const found: Address[] = [];
      if (v4.status === "fulfilled") for (const address of v4.value) found.push({ address, family: 4 });
      if (v6.status === "fulfilled") for (const address of v6.value) found.push({ address, family: 6 });
      if (found.length > 0) return found;
    } finally {
      // The place goes to the next one, not to a call that comes before that one continues.
      const next = this.#waiting.shift();
      if (next) next();
      else this.#running--;
    }
    return system(host);
  }

  async #turn(): Promise<void> {
    if (this.#running < AT_ONCE) this.#running++;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }
}

function system(host: string): Promise<readonly Address[]> {
  return new Promise((resolve, reject) =>
    systemLookup(host, { all: true }, (error, found) =>
      error ? reject(error) : resolve(found.map(({ address, family }) => ({ address, family: family === 6 ? 6 : 4 }))),
    ),
  );
}
