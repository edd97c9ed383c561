"""Who a client is and what it may do: SASL mechanisms, access rules, roles, quotas and tokens, all without I/O.

Start reading at `sasl.py` (logins) and `authorizer.py` (decisions). Clients use the client's side of SCRAM, so this
package imports neither `config` nor, before a token must be verified, PyJWT and cryptography."""

from penstock.security.acls import (
    ANY_NAME,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
    binding_from_wire,
    check_binding,
    check_filter,
    filter_from_wire,
)
from penstock.security.authorizer import Authorizer, Explanation
from penstock.security.bearer_tokens import (
    KeySet,
    TokenSettings,
    VerifiedToken,
    key_id,
    parse_jwks,
    verify_token,
)
from penstock.security.certificates import (
    MappingRule,
    certificate_principal,
    distinguished_name,
    parse_mapping_rules,
)
from penstock.security.credentials import (
    DEFAULT_ITERATIONS,
    SALT_BYTES,
    SCRAM_MECHANISMS,
    Credentials,
    Decoys,
    ScramCredential,
    ScramMechanism,
    credential_from_salted,
    make_credential,
    verify_password,
)
from penstock.security.errors import AuthenticationError, MalformedMessage, UnknownKey
from penstock.security.exchange import Accepted, Challenge, Exchange, Rejected, Step
from penstock.security.hosts import ANY_HOST
from penstock.security.plain import check_password
from penstock.security.principals import (
    EVERYBODY,
    Principal,
    group,
    is_login_name,
    name_of,
    parse_principal,
    user,
)
from penstock.security.rule_index import EVERY_OPERATION, Rule
from penstock.security.sasl import MECHANISMS, OAUTHBEARER, PLAIN, Verifiers, start_exchange
from penstock.security.scram import ScramClient

__all__ = [
    "ANY_HOST",
    "ANY_NAME",
    "DEFAULT_ITERATIONS",
    "EVERYBODY",
    "EVERY_OPERATION",
    "MECHANISMS",
    "OAUTHBEARER",
    "PLAIN",
    "SALT_BYTES",
    "SCRAM_MECHANISMS",
    "Accepted",
    "AclBinding",
    "AclFilter",
    "AuthenticationError",
    "Authorizer",
    "Challenge",
    "Credentials",
    "Decoys",
    "Exchange",
    "Explanation",
    "KeySet",
    "MalformedMessage",
    "MappingRule",
    "PatternType",
    "Permission",
    "Principal",
    "Rejected",
    "Rule",
    "ScramClient",
    "ScramCredential",
    "ScramMechanism",
    "Step",
    "TokenSettings",
    "UnknownKey",
    "VerifiedToken",
    "Verifiers",
    "binding_from_wire",
    "certificate_principal",
    "check_binding",
    "check_filter",
    "check_password",
    "credential_from_salted",
    "distinguished_name",
    "filter_from_wire",
    "group",
    "is_login_name",
    "key_id",
    "make_credential",
    "name_of",
    "parse_jwks",
    "parse_mapping_rules",
    "parse_principal",
    "start_exchange",
    "user",
    "verify_password",
    "verify_token",
]
