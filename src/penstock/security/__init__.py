"""Who a client is and what it may do: SASL mechanisms, access rules, roles, quotas and tokens, all without I/O.

Start reading at `sasl.py` (logins) and `authorizer.py` (decisions). Clients use the client's side of SCRAM, so this
package imports neither `config` nor, before a token must be verified, PyJWT and cryptography. Import what you need from
its modules: a broker inside a test should not wait for those that it does not use."""
