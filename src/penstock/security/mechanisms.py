"""The names of SASL mechanisms, apart from the code that carries them out."""

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
