"""Refusals that the service puts into words for its client."""


class ServiceError(Exception):
    """A refusal with the HTTP status that the hosted service gives for it."""

    status = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UserError(ServiceError):
    """The request is well formed but can't be carried out: 400."""

    status = 400


class Unauthorized(ServiceError):
    status = 401


class NotFound(ServiceError):
    status = 404


class Conflict(ServiceError):
    """The name is taken: 409."""

    status = 409


class Gone(ServiceError):
    """It existed and can't be had any more (a finished session, a lost future): 410."""

    status = 410


class Unprocessable(ServiceError):
    """The request's fields don't have the declared types: 422."""

    status = 422
