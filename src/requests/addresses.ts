// Which addresses a request may reach. Every address counts, also a literal and the one that a connection really has: a name that resolves to a public
// address first and to a private one later is refused at the connection. Only what is known to be public passes; nothing is listed as forbidden.
import ipaddr from "ipaddr.js";
import { ErrorCode, OutliveError } from "../job/errors.ts";

/** "public": unicast addresses of the internet. "any": all. Or CIDRs and host names, which alone are allowed. */
export type AddressRule = "public" | "any" | readonly string[];

type Cidr = ReturnType<typeof ipaddr.parseCIDR>;

export class Addresses {
  readonly #rule: "public" | "any" | "list";
  readonly #cidrs: readonly Cidr[] = [];
  readonly #hosts: ReadonlySet<string> = new Set();

  constructor(rule: AddressRule) {
    if (rule === "public" || rule === "any") {
      this.#rule = rule;
      return;
    }
    this.#rule = "list";
    const cidrs = rule.map((one) => cidrOf(one));
    this.#cidrs = cidrs.filter((one) => one !== null);
    this.#hosts = new Set(rule.filter((_, i) => cidrs[i] === null).map((host) => host.toLowerCase()));
  }

  /** Whether an address may be reached. A host of the list may have any address. */
  allows(address: string, host: string): boolean {
    if (this.#rule === "any") return true;
    if (this.#hosts.has(host.toLowerCase())) return true;
    if (!ipaddr.isValid(address)) return false;
    // An IPv4 address in the form of IPv6 is what it stands for.
    const parsed = ipaddr.process(address);
    if (this.#rule === "public") return parsed.range() === "unicast";
    return this.#cidrs.some(([of, bits]) => parsed.kind() === of.kind() && parsed.match(of, bits));
  }
}

function cidrOf(text: string): Cidr | null {
  try {
    if (text.includes("/")) return ipaddr.parseCIDR(text);
    return ipaddr.isValid(text)
      ? ([ipaddr.process(text), ipaddr.process(text).kind() === "ipv4" ? 32 : 128] as Cidr)
      : null;
  } catch {
    return null;
  }
}

export function addressRefused(host: string, address: string): OutliveError {
  const which = host === address ? host : `${host} (${address})`;
  return new OutliveError(
    ErrorCode.requestRefused,
    `The address of ${which} is not one that this request may reach.`,
    'Nothing was sent. If it may be private, say so: addresses: "any", or a list of hosts and CIDRs.',
    { host },
  );
}
